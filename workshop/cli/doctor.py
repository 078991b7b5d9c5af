"""``workshop doctor``: one line a check, `ok`, `note` or `no`."""

from __future__ import annotations

import argparse
import dataclasses
import json

from workshop.doctor import diagnose, render, summary


def run(options: argparse.Namespace) -> int:
    """The command."""
    if options.json:
        diagnosis = diagnose()
        print(json.dumps([dataclasses.asdict(line) for line in diagnosis], indent=1))
    else:
        diagnosis = diagnose(on_line=lambda line: print(render(line), flush=True))
        print(summary(diagnosis))
    return 0 if diagnosis.can_run else 1
