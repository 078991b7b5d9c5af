"""`workshop validate`: every published row again, and how far off we are.

    workshop validate [--tables DIR] [--json] [--quantity time|memory] [--held]

For each table and each group within it: rows used, mean, median, 90th percentile and worst absolute relative
error, and Spearman's rank correlation between predicted and measured (does the prediction put layouts in the
right order?). For the verdicts `memory_fits` the mean error is the share of wrong ones. What could not be
predicted is listed with the reason. `--held` keeps only groups that no constant was fitted on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workshop.predict.validate.cases import Skipped
from workshop.predict.validate.time import Line, time_lines

COLUMNS = ("rows", "mean_error", "median_error", "p90_error", "worst_error", "spearman")


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Rank correlation of two sequences, ties at their mean rank; None where one of them does not vary."""
    if len(a) < 2:
        return None
    first, second = _ranks(np.asarray(a, float)), _ranks(np.asarray(b, float))
    if first.std() == 0 or second.std() == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[which]


def summary(lines: Sequence[Line]) -> dict[str, Any]:
    """Errors as fractions, and the rank correlation, of some lines."""
    errors = np.array([line.error for line in lines])
    if not len(errors):
        return {"rows": 0, **dict.fromkeys(COLUMNS[1:])}
    return {
        "rows": len(errors),
        "mean_error": float(errors.mean()),
        "median_error": float(np.median(errors)),
        "p90_error": float(np.quantile(errors, 0.9)),
        "worst_error": float(errors.max()),
        "spearman": spearman([x.predicted for x in lines], [x.measured for x in lines]),
    }


def records(lines: Sequence[Line], skipped: Sequence[Skipped]) -> list[dict[str, Any]]:
    """One record for every table and quantity (group "all") and for every group within it."""
    found: list[dict[str, Any]] = []
    for table in dict.fromkeys([*(x.table for x in lines), *(x.table for x in skipped)]):
        mine = [x for x in lines if x.table == table]
        left = Counter(x.reason for x in skipped if x.table == table)
        for quantity in dict.fromkeys(x.quantity for x in mine) or [""]:
            some = [x for x in mine if x.quantity == quantity]
            found.append(
                {
                    "table": table,
                    "group": "all",
                    "quantity": quantity,
                    **summary(some),
                    "skipped": sum(left.values()),
                    "reasons": dict(left.most_common()),
                }
            )
            for group in sorted({x.group for x in some}):
                found.append(
                    {
                        "table": table,
                        "group": group,
                        "quantity": quantity,
                        **summary([x for x in some if x.group == group]),
                        "skipped": 0,
                    }
                )
    return found


VERDICT = "memory_fits"
"""The quantity of a verdict: did it fit? Its error is 0 where ours agrees and 1 where not, so that
`mean_error` is the share of wrong verdicts."""


def memory_lines(folder: Path) -> tuple[list[Line], list[Skipped]]:
    """The memory tables, in the same form: bytes of what ran, and for every row whether it ran."""
    from workshop.predict.validate import memory

    found, left = memory.results(folder)
    lines = [
        Line(
            r.case.table,
            r.case.group,
            f"memory_{r.case.quantity}_bytes",
            r.case.row,
            r.case.measured,
            r.predicted,
            r.half == "held",
        )
        for r in found
        if r.fitted
    ]
    lines += [
        Line(
            r.case.table,
            "ran" if r.fitted else "ran out of memory",
            VERDICT,
            r.case.row,
            1.0,
            float(r.fits == r.fitted),
            r.half == "held",
        )
        for r in found
        if r.case.quantity != "activations"
    ]
    return lines, [Skipped(x.table, x.row, x.reason) for x in left]


def text(found: Iterable[dict[str, Any]]) -> str:
    """The records as a table to read."""
    out: list[str] = []
    for record in found:
        if record["group"] == "all":
            out.append(f"\n{record['table']}  ({record['quantity'] or 'not predicted'})")
            out.append(
                f"  {'group':<44} {'rows':>5} {'mean':>7} {'median':>7} {'p90':>7} {'worst':>7} {'rank':>6}"
            )
        if record["rows"]:
            errors = " ".join(f"{record[c]:>7.1%}" for c in COLUMNS[1:5])
            rank = "" if record["spearman"] is None else f"{record['spearman']:>6.2f}"
            out.append(f"  {record['group'][:44]:<44} {record['rows']:>5} {errors} {rank}")
        out += [f"  skipped {count}: {reason}" for reason, count in record.get("reasons", {}).items()]
    return "\n".join(out)


def validate(folder: Path, quantity: str = "both", *, held_only: bool = False) -> list[dict[str, Any]]:
    """Records of every known table in a folder, for "time", "memory" or "both".

    held_only: leave out the groups that a constant was fitted on. Raises ValueError when there is no such
    folder, or no table in it that is known here.
    """
    if not folder.is_dir():
        raise ValueError(f"no folder {folder}; name one with --tables")
    found: list[dict[str, Any]] = []
    for kind, lines_of_folder in (("time", time_lines), ("memory", memory_lines)):
        if quantity in (kind, "both"):
            lines, skipped = lines_of_folder(folder)
            found += records([x for x in lines if x.held or not held_only], skipped)
    if not found:
        raise ValueError(f"no known table in {folder}; tables are named as in data/published")
    return sorted(found, key=lambda record: record["table"])


def main_validate(argv: Sequence[str] | None = None) -> int:
    """The command line; returns 0, or 2 when the folder has no table that can be read."""
    parser = argparse.ArgumentParser("workshop validate", description="Predict every published row again.")
    parser.add_argument("--tables", type=Path, default=Path("data/published"), help="folder of tables (CSV)")
    parser.add_argument("--json", action="store_true", help="records as JSON")
    parser.add_argument("--quantity", choices=("time", "memory", "both"), default="both")
    parser.add_argument("--held", action="store_true", help="only groups that no constant was fitted on")
    options = parser.parse_args(argv)
    try:
        found = validate(options.tables, options.quantity, held_only=options.held)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(found, indent=1) if options.json else text(found))
    return 0
