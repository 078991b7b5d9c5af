"""One configuration, measured several times: how far apart the runs lie, whatever anybody predicts.

Of one source: no prediction has a smaller mean error than the best single number for each configuration, and
that is not nought (`floors`). Of two sources (`measured_twice`): same model, device, number of devices, axes,
micro-batch, batch, length and format of numbers. What else may differ, such as the release of a library or
what is captured in graphs, is a source's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean

import numpy as np

from workshop.published.record import SECONDS, TIMES, TOKENS, MeasuredRun, Observation
from workshop.published.regimes import AXES, configuration


@dataclass(frozen=True)
class Twice:
    """Two sources' seconds of a step of one configuration, of each run."""

    words: str
    sources: tuple[str, str]
    seconds: tuple[tuple[float, ...], tuple[float, ...]]

    @property
    def ratio(self) -> float:
        """The second source's mean over the first's."""
        return mean(self.seconds[1]) / mean(self.seconds[0])

    @property
    def error(self) -> float:
        """The mean error of the first source's mean, had it been a prediction of the second's runs."""
        predicted = mean(self.seconds[0])
        return mean(abs(predicted / seconds - 1) for seconds in self.seconds[1])


def seconds_of(one: Observation) -> float | None:
    """Measured seconds of a step, where the source gives them or tokens a second; else None."""
    run = one.record.run
    if one.quantity == SECONDS:
        return one.measured
    if one.quantity == TOKENS:
        return run.global_batch * run.seq_len / (one.measured * run.layout.world_size)
    return None


def measured_twice(records: Sequence[MeasuredRun]) -> list[Twice]:
    """Every configuration that more than one source timed, sources in the order of their names."""
    runs_by_words: dict[str, dict[str, list[float]]] = {}
    for record in records:
        for one in record.observations((SECONDS, TOKENS)):
            seconds = seconds_of(one)
            if seconds is not None:
                by_source = runs_by_words.setdefault(_words(record), {})
                by_source.setdefault(AXES["source"](record), []).append(seconds)
    return [
        Twice(words, (first, second), (tuple(by_source[first]), tuple(by_source[second])))
        for words, by_source in sorted(runs_by_words.items())
        for first, second in combinations(sorted(by_source), 2)
    ]


@dataclass(frozen=True)
class Floor:
    """A source's times: how many configurations, and how many of them were measured several times.

    apart: of those, the mean of the longest run over the shortest. least: the smallest mean error that any
    prediction of one number for each configuration has, all configurations counted.
    """

    source: str
    configurations: int
    repeated: int
    apart: float
    least: float


def least_error(measured: Sequence[float]) -> float:
    """The smallest mean of |p / measured - 1| over all p: it bends at measurements alone, so one is the best.

    Example:
        >>> round(least_error([90.0, 100.0, 110.0]), 4)
        0.0673
    """
    values = np.asarray(measured, float)
    return float(min(np.abs(p / values - 1).mean() for p in values))


def floors(records: Sequence[MeasuredRun]) -> list[Floor]:
    """Of every source that timed some configuration several times."""
    by_source: dict[str, dict[object, list[float]]] = {}
    for record in records:
        for one in record.observations(TIMES):
            runs = by_source.setdefault(AXES["source"](record), {})
            runs.setdefault(configuration(one), []).append(one.measured)
    return [
        Floor(
            source,
            len(runs),
            len(repeats),
            mean(max(values) / min(values) for values in repeats),
            mean(least_error(values) for values in runs.values()),
        )
        for source, runs in sorted(by_source.items())
        if (repeats := [values for values in runs.values() if len(values) > 1])
    ]


def _words(record: MeasuredRun) -> str:
    run, cut = record.run, record.run.layout
    axes = {"tp": cut.tensor, "pp": cut.pipeline, "cp": cut.context, "ep": cut.expert}
    parts = (
        f"{run.model.name} on {cut.world_size} {run.cluster.device.name}",
        cut.precision,
        " ".join(f"{name} {ways}" for name, ways in axes.items() if ways > 1),
        f"{run.micro_batch} of {run.global_batch} x {run.seq_len:,}",
    )
    return ", ".join(filter(None, parts))
