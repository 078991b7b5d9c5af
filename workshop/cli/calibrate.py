"""``workshop calibrate``: the rates of a device and of its network, from measured runs."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from workshop.published.calibrate import as_toml, calibrate, text
from workshop.published.canonical_reader import read_runs


def run(options: argparse.Namespace) -> int:
    """The command: 0, or 1 where the runs determine no constant."""
    if options.output and options.output.exists():
        raise ValueError(f"{options.output} is there already: name another file, or remove it")
    records, unread = read_runs(options.runs)
    fitted, skipped = calibrate(records, options.like)
    skipped = sorted([*unread, *skipped], key=lambda left: left.row)
    if options.json:
        left = [{"line": x.row, "reason": x.reason} for x in skipped]
        print(json.dumps({"devices": [asdict(one) for one in fitted], "skipped": left}, indent=1))
    else:
        print(text(fitted, skipped))
    known = any(one.values for one in fitted)
    if options.output and known:
        options.output.write_text(as_toml(fitted, options.runs.name), "utf-8")
        if not options.json:
            print(f"written to {options.output}; to use it: WORKSHOP_RATES={options.output} workshop ...")
    return 0 if known else 1
