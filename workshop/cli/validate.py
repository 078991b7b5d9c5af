"""``workshop validate``: published rows, or your own, predicted again, and how far off we are."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from workshop.facts.published import FOLDER
from workshop.published import serving
from workshop.published.canonical import as_csv
from workshop.published.canonical_reader import read_runs
from workshop.published.left_out import left_out, read
from workshop.published.left_out_report import page
from workshop.published.own_runs import assumptions, assumptions_text, compare
from workshop.published.own_runs import text as own_text
from workshop.published.report import text, validate
from workshop.published.tables import read_folder


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop validate``."""
    parser.description = (
        "Predict every row of the published tables again and print how far off it is, by table and by "
        "group; or, with --runs, every row of your own runs. Exit code 0: done; 1: not one row could be "
        "predicted; 2: a wrong call."
    )
    parser.add_argument("--tables", type=Path, metavar="DIR", help="folder of CSVs (default: data/published)")
    parser.add_argument(
        "--quantity", choices=("time", "memory", "both"), default="both", help="what to check (default: both)"
    )
    parser.add_argument(
        "--runs",
        type=Path,
        metavar="FILE",
        help="your own runs as CSV, in the columns of data/published/canonical.csv",
    )
    parser.add_argument(
        "--assumptions", action="store_true", help="list what each source leaves open and what was assumed"
    )
    parser.add_argument(
        "--canonical", type=Path, metavar="FILE", help="write all tables in the columns of --runs, and end"
    )
    parser.add_argument(
        "--left-out",
        action="store_true",
        help="errors and intervals on sources, devices and other regimes that were left out of the fit",
    )
    parser.add_argument(
        "--refit", action="store_true", help="with --left-out: fit again for every regime (minutes)"
    )
    parser.add_argument("--serving", action="store_true", help="the tables of servers instead")
    parser.add_argument("--held", action="store_true", help="only groups that no constant was fitted on")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of tables")


def run(options: argparse.Namespace) -> int:
    """The command: 0, or 1 where rows were read and not one of them could be predicted."""
    if options.runs and options.held:
        raise ValueError("--held is of the published tables: a row of your own was never fitted on")
    _refuse_what_would_be_dropped(options)
    if options.serving:
        return _serving(options)
    if options.left_out:
        return _left_out(options)
    if options.canonical:
        records, _ = read_folder(options.tables or FOLDER)
        options.canonical.write_text(as_csv(records), "utf-8")
        print(f"{len(records)} rows in {options.canonical}")
        return 0
    if options.assumptions:
        records, _ = read_runs(options.runs) if options.runs else read_folder(options.tables or FOLDER)
        listed = assumptions(records)
        print(json.dumps(listed, indent=1) if options.json else assumptions_text(listed))
        return 0 if records else 1
    if options.runs:
        own = compare(options.runs, options.quantity)
        print(json.dumps(own, indent=1) if options.json else own_text(own))
        return 0 if own["rows"] else 1
    compared = validate(options.tables or FOLDER, options.quantity, held_only=options.held)
    print(json.dumps(compared, indent=1) if options.json else text(compared).lstrip("\n"))
    return 0 if any(record["rows"] for record in compared) else 1


def _refuse_what_would_be_dropped(options: argparse.Namespace) -> None:
    """ValueError for options that say different things to do, or that what is to be done does not read."""
    if options.refit and not options.left_out:
        raise ValueError("--refit is with --left-out: its predictions are kept, and this fits them anew")
    modes = [
        f"--{name.replace('_', '-')}"
        for name in ("serving", "left_out", "canonical", "assumptions", "runs")
        if getattr(options, name)
    ]
    if len(modes) > 1 and modes != ["--assumptions", "--runs"]:
        raise ValueError(f"{' and '.join(modes)} ask for different things: one of them")
    if options.tables and options.runs:
        raise ValueError("--runs are your own rows, --tables the published ones: one of them")


def _serving(options: argparse.Namespace) -> int:
    """Errors on published servers."""
    rows, left = serving.read_rows(options.tables or FOLDER)
    summaries = serving.summary(rows, left)
    print(json.dumps(summaries, indent=1) if options.json else serving.text(summaries, left))
    return 0 if rows else 1


def _left_out(options: argparse.Namespace) -> int:
    """Errors on regimes that were left out, from the predictions that are kept or from new fits."""
    records, _ = read_folder(options.tables or FOLDER)
    rows = left_out(records, lambda words: print(words, file=sys.stderr)) if options.refit else read(records)
    print(page(rows, records))
    return 0
