"""One configuration, measured by two sources: how far apart they lie, whatever anybody predicts.

Same model, device, number of devices, axes, micro-batch, batch, length and format of numbers. What else may
differ, such as the release of a library or what is captured in graphs, is a source's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean

from workshop.published.record import SECONDS, TOKENS, MeasuredRun, Observation
from workshop.published.regimes import AXES


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
    found: dict[str, dict[str, list[float]]] = {}
    for record in records:
        for one in record.observations((SECONDS, TOKENS)):
            seconds = seconds_of(one)
            if seconds is not None:
                by_source = found.setdefault(_words(record), {})
                by_source.setdefault(AXES["source"](record), []).append(seconds)
    return [
        Twice(words, (first, second), (tuple(by_source[first]), tuple(by_source[second])))
        for words, by_source in sorted(found.items())
        for first, second in combinations(sorted(by_source), 2)
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
