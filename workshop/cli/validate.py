"""``workshop validate``: published rows, or your own, predicted again, and how far off we are."""

from __future__ import annotations

import argparse
import json
import sys

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


def run(options: argparse.Namespace) -> int:
    """The command: 0, or 1 where rows were read and not one of them could be predicted."""
    if options.runs and options.held:
        raise ValueError("--held is of the published tables: a row of your own was never fitted on")
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


def _serving(options: argparse.Namespace) -> int:
    """Errors on published servers."""
    rows, left = serving.read_rows(options.tables or FOLDER)
    found = serving.summary(rows, left)
    print(json.dumps(found, indent=1) if options.json else serving.text(found, left))
    return 0 if rows else 1


def _left_out(options: argparse.Namespace) -> int:
    """Errors on regimes that were left out, from the predictions that are kept or from new fits."""
    records, _ = read_folder(options.tables or FOLDER)
    rows = left_out(records, lambda words: print(words, file=sys.stderr)) if options.refit else read(records)
    print(page(rows, records))
    return 0
