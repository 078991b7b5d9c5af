"""Published runs of programs that nobody had described when they were predicted: what not being known costs.

`data/published/blind_rows.csv` was collected and described before one of its rows was predicted, and what
was predicted first is kept in `data/measurements/blind_first.csv`. No constant is fitted on them. How far off
they were at first says how wide an interval must be for a program that nobody has looked at
(`workshop.predict.interval`: the doubt *undescribed*).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workshop.facts.published import FOLDER
from workshop.predict.interval import Bars
from workshop.published.canonical_reader import read_runs
from workshop.published.left_out import COMPARED, LeftOut
from workshop.published.record import TIMES, MeasuredRun
from workshop.published.regimes import unique_weights
from workshop.published.residuals import (
    DOUBT,
    TAIL,
    Sample,
    doubts_of,
    estimate,
    known_beside,
    names_of,
    quantile,
    sample,
)

ROWS = FOLDER / "blind_rows.csv"
FIRST = FOLDER.parent / "measurements" / "blind_first.csv"
AXIS = "first"


def first_predictions() -> dict[tuple[int, str], float]:
    """What was predicted at first, by line and quantity: in the source's unit, or bytes of memory."""
    with FIRST.open(newline="", encoding="utf-8") as file:
        return {(int(r["line"]), r["quantity"]): float(r["predicted"]) for r in csv.DictReader(file)}


def first_rows(kind: str) -> list[LeftOut]:
    """The measurements of "time" or "memory" that had a first prediction, which stands under `AXIS`."""
    before, suffix = first_predictions(), "" if kind == "time" else "_bytes"
    return [
        LeftOut(one, {AXIS: before[one.row, one.quantity + suffix]})
        for record in read_runs(ROWS)[0]
        for one in record.observations(TIMES if kind == "time" else COMPARED)
        if (one.row, one.quantity + suffix) in before
    ]


def doubts_of_blind(row: LeftOut, known: Bars) -> tuple[str, ...]:
    """The doubts about such a row; one whose stack only stands for its program has those of a strange one."""
    if "stack" in dict(row.one.record.assumed):
        known = replace(known, stacks=frozenset())
    return doubts_of(row, known, described=False)


def blind_sample(kind: str, known: Bars) -> Sample:
    """The residuals of those that nobody had described, with the other doubts that each row had.

    A source is the first word of a row's group.
    """
    rows = [row for row in first_rows(kind) if DOUBT in doubts_of_blind(row, known)]
    doubts = [set(doubts_of_blind(row, known)) for row in rows]
    names = names_of(kind)
    return Sample(
        names,
        np.array([f"blind: {row.one.record.group.split()[0]}" for row in rows]),
        np.array([row.residual(AXIS) for row in rows]),
        np.array([[name in some for name in names] for some in doubts], float),
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
