"""``workshop doctor``: one line a check, `ok`, `note` or `no`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys

from workshop.doctor import diagnose, render, summary


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
