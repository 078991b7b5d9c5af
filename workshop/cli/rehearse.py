"""``workshop rehearse FILE``: a script as one rank of a world that is never started.

What `%rehearse` does in a notebook. The report goes to standard output after what the program printed; a
program that cannot be rehearsed is told of on standard error, with its line.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from workshop.cli.counts import positive
from workshop.rehearse import Rehearsal, RehearsalError, Rehearsals, parse_ranks, rehearse_ranks


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop rehearse``."""
    parser.description = (
        "Execute the script for some steps on fake tensors and with a fake process group, and print the "
        "rank's peak memory by part, its collectives and its FLOPs. Options of this command stand before "
        "FILE, those of the script after it. Exit code 0: rehearsed; 1: it could not be, or an alarm says "
        "that the report is probably not of the training that was meant; 2: a wrong call."
    )
    parser.add_argument(
        "-n",
        "--world-size",
        "--nproc-per-node",
        type=int,
        required=True,
        metavar="WORLD",
        help="ranks in the world",
    )
    parser.add_argument("--rank", default="0", metavar="R", help="which to be; several: 0,7,63 (default: 0)")
    parser.add_argument("--steps", type=int, metavar="S", help="optimizer steps to run (default: 2)")
    parser.add_argument("--gloo", action="store_true", help="count the copies gloo makes")
    parser.add_argument("--device", metavar="NAME", help="time the step on this device's roofline: H100")
    parser.add_argument(
        "--cuda",
        action="store_true",
        help="where there is no GPU: answer a script that asks as if there were",
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        default=120.0,
        metavar="S",
        help="seconds until it is ended (default: 120)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list, one object a rank")
    parser.add_argument("script", type=Path, metavar="FILE", help="the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's arguments")


def run(options: argparse.Namespace) -> int:
    """The command: 0, or 1 where the script cannot be rehearsed or the report is not to be trusted."""
    try:
        rehearsed = rehearse_ranks(
            options.script,
            options.world_size,
            parse_ranks(options.rank),
            arguments=tuple(options.arguments),
            steps=options.steps,
            gloo=options.gloo,
            roofline=options.device,
            pretend_cuda=options.cuda,
            timeout_seconds=options.timeout,
        )
    except RehearsalError as error:
        print(error.output, end="")
        print(f"workshop rehearse: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps([one.to_dict() for one in rehearsed], indent=1))
    else:
        print(rehearsed.ranks[0].output, end="")
        print(_shown(rehearsed))
    return 1 if any(one.alarms for one in rehearsed) else 0


def _shown(rehearsed: Rehearsals) -> Rehearsal | Rehearsals:
    return rehearsed.ranks[0] if len(rehearsed) == 1 else rehearsed
