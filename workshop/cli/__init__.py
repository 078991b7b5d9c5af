"""The ``workshop`` command: ``lab``, ``doctor``, ``assets``, ``export``, ``predict``, ``plan`` and more.

Each command is a module of its own, with its options (``add_options``) and what it does (``run``). It is
imported when it is asked for: ``workshop --help`` needs no more than the lines below, and answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

from workshop import __version__
from workshop.facts.checks import nearest

DESCRIPTION = "A day-by-day Jupyter workshop on training models that do not fit, run on real ranks."
EPILOG = "Start with `workshop lab`. If something does not work, `workshop doctor` says what and why."

COMMANDS = {
    "lab": "open the lessons in JupyterLab, as working copies of your own",
    "doctor": "check whether this machine can run the workshop",
    "site": "show which site is in use, and check its file on this machine",
    "container": "print the command line that runs something in the site's container, or build it",
    "assets": "list, fetch and verify the models and data of the lessons",
    "export": "turn a cell or a script into a file for torchrun and a Slurm job",
    "predict": "predict the memory and the time of a run",
    "plan": "find the fastest layouts that fit a cluster",
    "rehearse": "run a training script as one rank of thousands, on tensors without data",
    "configs": "write the file that Accelerate, DeepSpeed, FSDP, vLLM or SGLang needs; read such files",
    "sbatch": "submit a cell, a script or a run to Slurm or Grid Engine, and follow it",
    "jobs": "list submitted jobs, follow or cancel one",
    "validate": "compare predictions with published measurements, or with your own",
    "calibrate": "fit a device, its network and its idle memory to your own runs",
    "gpus": "show which notebook holds which GPU of this node",
    "monitor": "show what cores, memory, disk, network and GPUs are doing",
    "room": "share progress in a course, see who is stuck, send hints",
    "grade": "rerun submitted notebooks in a sandbox and judge their exercises",
}
"""Every command, which is also its module's name, and what ``workshop --help`` says of it."""

NAMES_AFTER_OPTIONS = ("assets", "site", "container")
"""Commands of an action and its names, between which options may stand."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 well, 1 a finding or a failure, 2 a wrong call."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = " ".join(["workshop", *[word for word in words if word in COMMANDS][:1]])
    try:
        try:
            return _called(words)
        finally:
            sys.stdout.flush()  # here, where a full disk and a reader who has gone can still be told of
    except BrokenPipeError:  # as under `workshop doctor | head -3`: who read has all that was wanted
        _print_no_more()
        return 141  # as a shell counts it: 128 and SIGPIPE
    except OSError as error:
        _print_no_more()
        print(f"{command}: {in_words(error)}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def in_words(error: OSError) -> str:
    """An error of the file system in one line: the file, and what the system says of it."""
    if not error.strerror:  # ours, in words already
        return str(error)
    files = " to ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    return f"{files}: {error.strerror}" if files else error.strerror


def _print_no_more() -> None:
    """Let what could not be printed go nowhere: Python would try again at its end, and complain."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: a stdout that is no file, as in a test
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _called(words: Sequence[str]) -> int:
    parser = build_parser()
    command = next((word for word in words if not word.startswith("-")), "")
    if command in COMMANDS:
        _module(command).add_options(parser.commands[command])
    if command in NAMES_AFTER_OPTIONS and words[0] == command:
        options, unknown = _mixed(parser.commands[command], words[1:])
        options.command = command
    else:
        options, unknown = parser.parse_known_args(words)
    if unknown:  # said with the usage of the command that was asked for
        parser.commands[options.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return int(_module(options.command).run(options))


def _mixed(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse words where options may stand between an action and its names.

    A command line after ``--`` (``words``) is another program's, and its options are not looked at.
    """
    takes_command = any(action.dest == "words" for action in parser._actions)
    end = words.index("--") if takes_command and "--" in words else len(words)
    options, unknown = parser.parse_known_intermixed_args(words[:end])
    if takes_command:
        options.words += words[end + 1 :]
    return options, unknown


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"workshop.cli.{command}")


class _Parser(argparse.ArgumentParser):
    """A parser that names the command nearest to one that there is not."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands: Mapping[str, argparse.ArgumentParser] = {}

    def error(self, message: str) -> NoReturn:
        """End with the message, the known names and the nearest of them."""
        wrong = re.match(r"argument COMMAND: invalid choice: '([^']*)'", message)
        super().error(message + (nearest(wrong[1], self.commands) if wrong else ""))


def build_parser() -> _Parser:
    """The command line, with every command and the options of none."""
    parser = _Parser("workshop", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"workshop {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parser.commands = commands.choices
    for name, purpose in COMMANDS.items():
        commands.add_parser(name, help=purpose)
    return parser
