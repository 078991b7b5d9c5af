"""The ``workshop`` command: ``lab``, ``doctor``, ``assets``, ``export``, ``predict``, ``plan`` and more.

Each command is a module of its own, with its options (``add_options``) and what it does (``run``). It is
imported when it is asked for: ``workshop --help`` needs no more than the lines below, and answers at once.
"""

from __future__ import annotations

import argparse
import importlib
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
    "doctor": "say whether this machine can run the workshop",
    "site": "say which site is in force, and whether its file fits this machine",
    "container": "print the line that runs a command in the site's container, or builds it",
    "assets": "list, fetch and verify the models and data of the lessons",
    "export": "turn a cell or a script into a file for torchrun and a Slurm job",
    "predict": "say what memory and time a run would take",
    "plan": "find the fastest layouts that fit a cluster",
    "rehearse": "run a training script as one rank of any world, on tensors without bytes",
    "configs": "write a run for Accelerate, DeepSpeed, FSDP, vLLM or SGLang; read such a file",
    "sbatch": "hand a cell, a script or a run in to Slurm or Grid Engine, and follow it",
    "jobs": "list the jobs that were handed in, follow or end one",
    "validate": "predict every published measurement, or your own, again",
    "calibrate": "fit a device, its network and its idle memory to your own runs",
    "gpus": "say which notebook holds which GPU of this node",
    "monitor": "say what cores, memory, disk, network and GPUs of this machine do",
    "room": "a course's shared folder: who is stuck where, and hints from the instructor",
    "grade": "rerun hand-ins in a sandbox and judge their exercises",
}
"""Every command, which is also its module's name, and what ``workshop --help`` says of it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 well, 1 a finding or a failure, 2 a wrong call."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = build_parser()
    asked = next((word for word in words if not word.startswith("-")), "")
    if asked in COMMANDS:
        _module(asked).add_options(parser.commands[asked])
    options, unknown = parser.parse_known_args(words)
    if unknown:  # said with the usage of the command that was asked for
        parser.commands[options.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return int(_module(options.command).run(options))
    except (ValueError, FileNotFoundError) as error:
        print(f"workshop {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


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
