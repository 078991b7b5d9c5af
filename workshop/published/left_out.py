"""Every row predicted by constants that never saw its regime, for each axis of `regimes` in turn.

    workshop validate --left-out --refit      fit again for each regime (minutes), and keep what was predicted
    workshop validate --left-out              the errors, from what is kept

What is kept is `data/measurements/left_out.csv`: a row for each measured quantity, the prediction of the
package as it is (`in_sample`), and one for each axis, with the row's own regime of that axis left out.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workshop.facts.published import FOLDER
from workshop.predict.memory import MemoryPrediction
from workshop.published.predicted import (
    memory_value,
    predict_times,
    predicted_memory,
    time_gap,
)
from workshop.published.record import (
    ACTIVATIONS,
    DEVICE,
    MEMORIES,
    OUT_OF_MEMORY,
    RESERVED,
    TIMES,
    MeasuredRun,
    Observation,
)
from workshop.published.refit import Refits, refitted_share, with_share
from workshop.published.regimes import AXES

FILE = FOLDER.parent / "measurements" / "left_out.csv"
KEYS = ("table", "line", "quantity")
COMPARED = tuple(name for name in MEMORIES if name not in (OUT_OF_MEMORY, ACTIVATIONS))
"""Quantities of memory with an error: verdicts have none, and computed figures were never measured."""


@dataclass(frozen=True)
class LeftOut:
    """A measured quantity, and what was predicted for it: by axis, and "in_sample". In its own unit."""

    one: Observation
    predicted: dict[str, float]

    def residual(self, axis: str) -> float:
        """log(measured / predicted), of seconds where the quantity is a rate: positive is slower, or more."""
        faster = self.one.quantity in TIMES and self.one.quantity != TIMES[0]
        ratio = np.log(self.one.measured / self.predicted[axis])
        return float(-ratio if faster else ratio)

    @property
    def is_time(self) -> bool:
        """Whether it is a time, and not bytes."""
        return self.one.quantity in TIMES

    @property
    def key(self) -> tuple[str, str, str]:
        """What names the row in the file."""
        return self.one.table, str(self.one.row), self.one.quantity


def time_observations(records: Sequence[MeasuredRun]) -> list[Observation]:
    """Every measured time that the model has; ValueError of what has no constants is passed on."""
    return [one for record in records if not time_gap(record.run) for one in record.observations(TIMES)]


def memory_observations(records: Sequence[MeasuredRun]) -> list[tuple[Observation, MemoryPrediction]]:
    """Every measured memory that has an error, with the package's prediction for its run."""
    return [(one, predicted_memory(record)) for record in records for one in record.observations(COMPARED)]


def left_out(records: Sequence[MeasuredRun], say: Callable[[str], None] = print) -> list[LeftOut]:
    """Every row, predicted without its regime on each axis. Minutes: it fits once for each regime."""
    times, memories = time_observations(records), memory_observations(records)
    rows = [LeftOut(one, {"in_sample": float(x)}) for one, x in zip(times, predict_times(times), strict=True)]
    of_memory = [LeftOut(one, {"in_sample": memory_value(one, kept)}) for one, kept in memories]
    refits = Refits(times)
    for axis in AXES:
        for row, value in zip(rows, times_without(refits, axis, say), strict=True):
            row.predicted[axis] = float(value)
        for row, value in zip(of_memory, memories_without(memories, axis), strict=True):
            row.predicted[axis] = value
    return [*rows, *of_memory]


def times_without(refits: Refits, axis: str, say: Callable[[str], None]) -> np.ndarray:
    """Each time, predicted by constants that did not see its regime."""
    times = refits.rows
    regimes = np.array([AXES[axis](one.record) for one in times])
    seconds = np.empty(len(times))
    for regime in dict.fromkeys(regimes):
        out = np.flatnonzero(regimes == regime).tolist()
        say(f"{axis}: {regime} left out, {len(out)} rows of time")
        gone = {id(times[i]) for i in out}
        seconds[out] = predict_times([times[i] for i in out], refits.without(gone))
    return seconds


def memories_without(rows: Sequence[tuple[Observation, MemoryPrediction]], axis: str) -> list[float]:
    """Each memory, predicted with an idle share that did not see its regime."""
    regimes = [AXES[axis](one.record) for one, _ in rows]
    shares = {
        regime: refitted_share([row for row, other in zip(rows, regimes, strict=True) if other != regime])
        for regime in dict.fromkeys(regimes)
    }
    return [
        with_share(one, kept, shares[regime])
        if one.quantity in (RESERVED, DEVICE)
        else memory_value(one, kept)
        for (one, kept), regime in zip(rows, regimes, strict=True)
    ]


def as_csv(rows: Iterable[LeftOut]) -> str:
    """The file that `read` reads."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    write.writerow([*KEYS, "measured", "in_sample", *AXES])
    for row in rows:
        values = [row.one.measured, *(row.predicted[axis] for axis in ("in_sample", *AXES))]
        write.writerow([*row.key, *(f"{value:.6g}" for value in values)])
    return out.getvalue()


def read(records: Sequence[MeasuredRun], path: Path = FILE) -> list[LeftOut]:
    """What is kept, beside the rows it is about.

    Raises ValueError where the file does not hold just these rows: then it must be made again.
    """
    ones = [*time_observations(records), *(o for r in records for o in r.observations(COMPARED))]
    with path.open(newline="", encoding="utf-8") as file:
        kept = {tuple(row[key] for key in KEYS): row for row in csv.DictReader(file)}
    rows = []
    for one in ones:
        row = kept.pop((one.table, str(one.row), one.quantity), None)
        if row is None:
            raise ValueError(f"{path.name} has no row for {one.table}, line {one.row}: {AGAIN}")
        rows.append(LeftOut(one, {axis: float(row[axis]) for axis in ("in_sample", *AXES)}))
    if kept:
        raise ValueError(f"{path.name} has rows that no table has, such as {next(iter(kept))}: {AGAIN}")
    return rows


AGAIN = "make it again with `workshop validate --left-out --refit`"
