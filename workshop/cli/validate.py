"""``workshop validate``: every published row predicted again, and how far off the predictions are."""

from __future__ import annotations

import argparse
import json

from workshop.facts.published import FOLDER
from workshop.published.report import text, validate


def run(options: argparse.Namespace) -> int:
    """The command: 0, or 1 where the tables were read and not one row could be predicted."""
    found = validate(options.tables or FOLDER, options.quantity, held_only=options.held)
    print(json.dumps(found, indent=1) if options.json else text(found).lstrip("\n"))
    return 0 if any(record["rows"] for record in found) else 1
