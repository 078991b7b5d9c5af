"""Predicted time against every published table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workshop.predict.validate.cases import Case, Skipped, predict_cases
from workshop.predict.validate.fit import held_out
from workshop.predict.validate.tables import NOT_READ, READERS, read_table


@dataclass(frozen=True)
class Line:
    """One row beside its prediction; `held` if no constant was fitted on its group."""

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
        return abs(self.predicted / self.measured - 1)


def time_lines(folder: Path) -> tuple[list[Line], list[Skipped]]:
    """Every row of a folder's tables that can be predicted, and the others with the reason."""
    cases: list[Case] = []
    skipped: list[Skipped] = []
    for path in sorted(folder.glob("*.csv")):
        if path.stem in READERS:
            found, left = read_table(path)
            cases += found
            skipped += left
        elif path.stem in NOT_READ:
            skipped.append(Skipped(path.stem, -1, NOT_READ[path.stem]))
    lines: list[Line] = []
    left = skipped
    for table in dict.fromkeys(case.table for case in cases):
        mine = [case for case in cases if case.table == table]
        try:
            lines += lines_of(mine)
        except ValueError:
            for case in mine:  # one of them has a device or format without constants: leave only that one out
                try:
                    lines += lines_of([case])
                except ValueError as reason:
                    left.append(Skipped(table, case.row, str(reason)))
    return lines, left


def lines_of(cases: Sequence[Case]) -> list[Line]:
    """Cases beside their predictions."""
    if not cases:
        return []
    return [
        Line(case.table, case.group, case.quantity, case.row, case.measured, float(value), bool(held))
        for case, value, held in zip(cases, predict_cases(cases), held_out(cases), strict=True)
    ]
