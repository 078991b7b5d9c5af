"""`workshop validate`: every published row again, and how far off we are.

For each table and each group within it: rows used, mean, median, 90th percentile and worst absolute relative
error, and Spearman's rank correlation between predicted and measured (does the prediction put layouts in the
right order?). For the verdicts `memory_fits` the mean error is the share of wrong ones. What could not be
predicted is listed with the reason. `--held` keeps only groups that no constant of time was fitted on.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workshop.published.predicted import memory_value, predicted_memory, time_predictions
from workshop.published.record import (
    ACTIVATIONS,
    MEMORIES,
    OUT_OF_MEMORY,
    MeasuredRun,
    Observation,
    Skipped,
)
from workshop.published.tables import read_folder

COLUMNS = ("rows", "mean_error", "median_error", "p90_error", "worst_error", "spearman")
VERDICT = "memory_fits"
"""The quantity of a verdict: did it fit? Its error is 0 where ours agrees and 1 where not, so that
`mean_error` is the share of wrong verdicts."""


@dataclass(frozen=True)
class Line:
    """One measurement beside its prediction; `held` if no constant of time was fitted on its group."""

    table: str
    group: str
    quantity: str
    row: int
    measured: float
    predicted: float
    held: bool

    @property
    def error(self) -> float:
        """Absolute relative error."""
        return abs(self.signed_error)

    @property
    def signed_error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1

    @property
    def kind(self) -> str:
        """Either "time" or "memory"."""
        return "memory" if self.quantity.startswith("memory") else "time"


def is_held(record: MeasuredRun | Observation) -> bool:
    """Whether fitting may not see this row: about half of the groups of each table, drawn by a checksum."""
    return hashlib.sha256(f"{record.table}: {record.group}".encode()).digest()[0] % 2 == 1


def time_lines(records: Sequence[MeasuredRun]) -> tuple[list[Line], list[Skipped]]:
    """Times beside their predictions, and what could not be predicted."""
    answers, skipped = time_predictions(records)
    lines = [
        Line(one.table, one.group, one.quantity, one.row, one.measured, value, is_held(one))
        for one, value in answers
    ]
    return sorted(lines, key=lambda x: (x.table, x.row)), skipped


def memory_lines(records: Sequence[MeasuredRun]) -> tuple[list[Line], list[Skipped]]:
    """Bytes of what ran beside their predictions, and for every row whether it ran."""
    lines: list[Line] = []
    skipped: list[Skipped] = []
    for record in records:
        observations = record.observations(MEMORIES)
        if not observations:
            continue
        try:
            prediction = predicted_memory(record)
            values = [(one, memory_value(one, prediction)) for one in observations]
        except ValueError as reason:
            skipped.append(Skipped(record.table, record.row, str(reason), "memory"))
            continue
        held = is_held(record)
        lines += [
            Line(one.table, one.group, f"{one.quantity}_bytes", one.row, one.measured, value, held)
            for one, value in values
            if one.quantity != OUT_OF_MEMORY
        ]
        if any(one.quantity != ACTIVATIONS for one in observations):  # a computed figure ran on no device
            failed = bool(record.measured.get(OUT_OF_MEMORY))
            side = "ran out of memory" if failed else "ran"
            right = prediction.fits != failed
            lines.append(Line(record.table, side, VERDICT, record.row, 1.0, float(right), held))
    return lines, skipped


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
        return {"rows": 0, **dict.fromkeys(COLUMNS[1:]), "mean_signed_error": None}
    return {
        "rows": len(errors),
        "mean_error": float(errors.mean()),
        "median_error": float(np.median(errors)),
        "p90_error": float(np.quantile(errors, 0.9)),
        "worst_error": float(errors.max()),
        "spearman": spearman([x.predicted for x in lines], [x.measured for x in lines]),
        "mean_signed_error": float(np.mean([line.signed_error for line in lines])),
    }


def records(lines: Sequence[Line], skipped: Sequence[Skipped]) -> list[dict[str, Any]]:
    """One record for every table and quantity (group "all") and for every group within it.

    A table of which nothing is predicted has one with an empty quantity.
    """
    summaries: list[dict[str, Any]] = []
    for table in dict.fromkeys([*(x.table for x in lines), *(x.table for x in skipped)]):
        mine = [x for x in lines if x.table == table]
        left = [x for x in skipped if x.table == table]
        for quantity in dict.fromkeys(x.quantity for x in mine) or [""]:
            some = [x for x in mine if x.quantity == quantity]
            kind = some[0].kind if some else ""
            reasons = Counter(x.reason for x in left if not kind or x.kind in ("", kind))
            summaries.append(_record(table, "all", quantity, some, reasons))
            summaries += [
                _record(table, group, quantity, [x for x in some if x.group == group])
                for group in sorted({x.group for x in some})
            ]
    return summaries


def _record(
    table: str, group: str, quantity: str, lines: Sequence[Line], reasons: Counter[str] | None = None
) -> dict[str, Any]:
    left = {} if reasons is None else {"reasons": dict(reasons.most_common())}
    return {
        "table": table,
        "group": group,
        "quantity": quantity,
        **summary(lines),
        "skipped": sum((reasons or Counter()).values()),
        **left,
    }


def text(summaries: Iterable[dict[str, Any]]) -> str:
    """The records as a table to read."""
    out: list[str] = []
    for record in summaries:
        if record["group"] == "all":
            out.append(f"\n{record['table']}  ({record['quantity'] or 'not predicted'})")
            out.append(
                f"  {'group':<44} {'rows':>5} {'mean':>7} {'median':>7} {'p90':>7} {'worst':>7} {'rank':>6}"
                f" {'signed':>7}"
            )
        if record["rows"]:
            errors = " ".join(f"{record[c]:>7.1%}" for c in COLUMNS[1:5])
            rank = f"{'':>6}" if record["spearman"] is None else f"{record['spearman']:>6.2f}"
            signed = f"{record['mean_signed_error']:>+7.1%}"
            out.append(f"  {record['group'][:44]:<44} {record['rows']:>5} {errors} {rank} {signed}")
        out += [f"  skipped {count}: {reason}" for reason, count in record.get("reasons", {}).items()]
    return "\n".join(out)


def validate(folder: Path, quantity: str = "both", *, held_only: bool = False) -> list[dict[str, Any]]:
    """Records of every known table in a folder, for "time", "memory" or "both".

    held_only: leave out the groups that a constant was fitted on. Raises ValueError when there is no such
    folder, or no table in it that is known here.
    """
    rows, skipped = read_folder(folder)
    lines: list[Line] = []
    for kind, lines_of in (("time", time_lines), ("memory", memory_lines)):
        if quantity in (kind, "both"):
            some, left = lines_of(rows)
            lines += some
            skipped = [*skipped, *left]
    wanted = [x for x in skipped if quantity == "both" or x.kind in ("", quantity)]
    summaries = records([x for x in lines if x.held or not held_only], wanted)
    return sorted(summaries, key=lambda record: record["table"])
