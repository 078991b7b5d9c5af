"""Published runs of programs that nobody had described when they were predicted: what not being known costs.

`data/published/blind_rows.csv` was collected and described before one of its rows was predicted, and what
was predicted first is kept in `data/measurements/blind_first.csv`. No constant is fitted on them. How far off
they were at first says how wide an interval must be for a program that nobody has looked at
(`workshop.predict.interval`: the doubt *undescribed*).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from workshop.facts.precision import precision
from workshop.facts.published import FOLDER
from workshop.predict.interval import (
    MEMORY_DOUBTS,
    TIME_DOUBTS,
    Bars,
    memory_doubts,
    model_doubts,
    time_doubts,
)
from workshop.published.canonical_reader import read_runs
from workshop.published.left_out import COMPARED, LeftOut
from workshop.published.record import DEVICE, RESERVED, SECONDS, TIMES, MeasuredRun, Observation
from workshop.published.regimes import unique_weights
from workshop.published.residuals import TAIL, Sample, estimate, known_beside, quantile, sample

ROWS = FOLDER / "blind_rows.csv"
FIRST = FOLDER.parent / "measurements" / "blind_first.csv"
DOUBT = "undescribed"


@dataclass(frozen=True)
class Blind:
    """A measured quantity, and what was predicted for it before anybody had seen the measurement."""

    one: Observation
    predicted: float

    @property
    def residual(self) -> float:
        """log(measured / predicted), of seconds where the quantity is a rate: positive is slower, or more."""
        ratio = float(np.log(self.one.measured / self.predicted))
        return -ratio if self.one.quantity in TIMES and self.one.quantity != SECONDS else ratio


def first_predictions() -> dict[tuple[int, str], float]:
    """What was predicted at first, by line and quantity: in the source's unit, or bytes of memory."""
    with FIRST.open(newline="", encoding="utf-8") as file:
        return {(int(r["line"]), r["quantity"]): float(r["predicted"]) for r in csv.DictReader(file)}


def first_residuals(kind: str) -> list[Blind]:
    """The measurements of "time" or "memory" that had a first prediction."""
    before, suffix = first_predictions(), "" if kind == "time" else "_bytes"
    return [
        Blind(one, before[one.row, one.quantity + suffix])
        for record in read_runs(ROWS)[0]
        for one in record.observations(TIMES if kind == "time" else COMPARED)
        if (one.row, one.quantity + suffix) in before
    ]


def source_of(record: MeasuredRun) -> str:
    """Who measured a row: the first word of its group."""
    return record.group.split()[0]


def doubts_of(one: Observation, known: Bars, kind: str) -> tuple[str, ...]:
    """The doubts about such a row; one whose stack only stands for its program has those of a strange one."""
    record, run = one.record, one.record.run
    if "stack" in dict(record.assumed):
        known = Bars(known.scale, known.lower, known.upper, known.wider, known.devices)
    if kind == "time":
        return time_doubts(run, record.software.name, known)
    of_model = model_doubts(run.model, precision(run.layout.precision), run.adapter)
    doubts = memory_doubts(of_model, run.implementation.name, run.layout.pipeline > 1, known)
    return (*doubts, "outside") if one.quantity in (RESERVED, DEVICE) else doubts


def blind_sample(kind: str, known: Bars) -> Sample:
    """The residuals of those that nobody had described, with the other doubts that each row had."""
    rows: Sequence[Blind] = [row for row in first_residuals(kind) if DOUBT in doubts_of(row.one, known, kind)]
    names = tuple(name for name in (TIME_DOUBTS if kind == "time" else MEMORY_DOUBTS) if name != DOUBT)
    doubts = [set(doubts_of(row.one, known, kind)) for row in rows]
    return Sample(
        names,
        np.array([f"blind: {source_of(row.one.record)}" for row in rows]),
        np.array([row.residual for row in rows]),
        np.array([[name in one for name in names] for one in doubts], float),
        unique_weights([row.one for row in rows]),
    )


def times_as_wide(some: Sample, described: Bars) -> np.ndarray:
    """[rows]: how many times as wide an interval without the doubt *undescribed* must be to hold each."""
    scale = described.scale * np.exp(some.doubts @ np.log([described.wider[name] for name in some.names]))
    z = some.residuals / scale
    return np.maximum(z / described.upper, z / described.lower)


def widening(some: Sample, described: Bars) -> float:
    """The doubt's factor, at least 1: with it eight in ten rows lie inside, weighted by `Sample.votes`."""
    return max(1.0, quantile(times_as_wide(some, described), some.votes, 1 - 2 * TAIL))


def inside_without_source(some: Sample, described: Bars) -> np.ndarray:
    """[rows], bool: whether each lies in an interval whose doubt was estimated without the row's source."""
    times, inside = times_as_wide(some, described), np.zeros(len(some.residuals), bool)
    for name in np.unique(some.sources):
        mine = some.sources == name
        inside[mine] = times[mine] <= widening(some.take(~mine), described)
    return inside


def bars_with_blind(rows: Sequence[LeftOut], records: Sequence[MeasuredRun], kind: str) -> Bars:
    """The bars of "time" or "memory": of left-out rows, and of blind ones what not being described costs."""
    known = known_beside(records, None, kind)
    described = estimate(sample(rows, kind), known)
    factor = widening(blind_sample(kind, known), described)
    return replace(described, wider={**described.wider, DOUBT: factor})
