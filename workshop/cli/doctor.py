"""``workshop doctor``: one line a check, `ok`, `note` or `no`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys

from workshop.doctor import diagnose, render, summary


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop doctor``."""
    parser.description = (
        "One line for each thing the workshop needs: ok, note or no, and what to do for each no. The exit "
        "code is 0 when there is no no."
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of lines")


def run(options: argparse.Namespace) -> int:
    """The command."""
    if options.json:
        diagnosis = diagnose()
        print(json.dumps([dataclasses.asdict(line) for line in diagnosis], indent=1))
    else:
        colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")  # no-color.org
        diagnosis = diagnose(on_line=lambda line: print(render(line, colours), flush=True))
        print(summary(diagnosis))
    return 0 if diagnosis.can_run else 1
