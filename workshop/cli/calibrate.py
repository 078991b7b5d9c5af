"""``workshop calibrate``: the rates of a device and of its network, and what PyTorch's allocator leaves idle,
from measured runs.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from math import isfinite
from pathlib import Path

from workshop.facts.published import FOLDER
from workshop.predict.time.rates import rates_of
from workshop.published import calibrate_memory
from workshop.published.calibrate import as_toml, calibrate, text
from workshop.published.canonical_reader import read_runs
from workshop.published.constants import fitted_constants
from workshop.published.constants import text as constants_text


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop calibrate``."""
    parser.description = (
        "Fit the rates of a device (matmul, memory) and of the network between nodes to measured runs, and "
        "the share of memory that PyTorch reserves and leaves idle, with standard errors; what they do not "
        "determine is unknown. WORKSHOP_RATES names the written file to every other command. Exit code 0: "
        "something was fitted; 1: nothing; 2: a wrong call."
    )
    modes = parser.add_mutually_exclusive_group(required=True)
    modes.add_argument(
        "--runs",
        type=Path,
        metavar="FILE",
        help="measured runs as CSV, in the columns of data/published/canonical.csv",
    )
    modes.add_argument(
        "--constants",
        action="store_true",
        help="list what is fitted to the published runs, with standard errors, and end",
    )
    parser.add_argument(
        "--like", default="", metavar="DEVICE", help="the relative of a device that has no constants yet"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="a new TOML file for what was found")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")


def run(options: argparse.Namespace) -> int:
    """The command: 0, or 1 where the runs determine no constant."""
    if options.constants and (options.like or options.output):
        raise ValueError("--like and --output are of what is fitted to --runs; --constants only lists")
    if options.like:
        rates_of(options.like)
    if options.output and not options.output.parent.is_dir():
        raise ValueError(f"--output {options.output}: there is no folder {options.output.parent}")
    if options.constants:
        return show_constants(options.json)
    if options.output and options.output.exists():
        raise ValueError(f"{options.output} is there already: name another file, or remove it")
    records, unread = read_runs(options.runs)
    fitted, skipped = calibrate(records, options.like)
    memory, without = calibrate_memory.calibrate_memory(records)
    skipped = sorted({*unread, *skipped, *without}, key=lambda left: left.row)
    if options.json:
        left = [{"line": x.row, "reason": x.reason} for x in skipped]
        kept = None if memory is None else asdict(memory)
        document = {"devices": [asdict(one) for one in fitted], "memory": kept, "skipped": left}
        print(json.dumps(document, indent=1).replace("Infinity", "null"))  # JSON has no word for it
    else:
        print(text(fitted, skipped))
        if memory is not None:
            print(calibrate_memory.text(memory))
    known = any(one.values for one in fitted) or (memory is not None and not memory.unknown)
    if options.output and known:
        options.output.write_text(
            as_toml(fitted, options.runs.name) + calibrate_memory.as_toml(memory), "utf-8"
        )
        if not options.json:
            print(f"written to {options.output}; to use it: WORKSHOP_RATES={options.output} workshop ...")
    return 0 if known else 1


def show_constants(as_json: bool) -> int:
    """What is fitted to the published tables of this checkout, and how well they determine it."""
    constants = fitted_constants(FOLDER)
    if as_json:
        listed = [{**asdict(one), "unknown": one.unknown} for one in constants]
        for one in listed:
            if not isfinite(one["error"]):
                one["error"] = None  # JSON has no word for it
        print(json.dumps(listed, indent=1))
    else:
        print(constants_text(constants))
    return 0
