"""From residuals of left-out rows to intervals: how wide they are, and what widens them.

    make predict-report      writes workshop/predict/data/intervals.toml, with the page

The model is `workshop.predict.interval`'s: log(measured / predicted) has the scale

    scale(row) = scale * product of `wider` over its doubts,      wider >= 1

and p10 and p90 are quantiles of residual / scale. It is estimated by the likelihood of a double exponential,

    sum over rows of w (|r| / scale(row) + log scale(row)) + sum over doubts of (log wider)^2 / (2 ln(2)^2)

where a configuration that was measured ten times counts once, and rows of one source resemble each other: n
of them count as the n / (1 + (n - 1) alike) that a sample of clusters is worth (Kish, Survey Sampling, 1965,
section 5.4: the design effect). How alike they are is in the residuals: the share of their variance that lies
between sources (`Sample.alike`). At a third, three rows count 1.8, and a thousand 3. The last term says
beforehand that a doubt may well double an interval and hardly makes it ten times as wide. The doubts of a row
are those that it had when its source was left out: its device is unknown unless another source has it.

Quantiles are taken over rows whose scale was estimated **without their source**, with the same weights, so
that the width of an interval already answers for a source that nobody has seen. Coverage is then measured
with the quantiles of the other sources alone (`coverage`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np

from workshop.facts.precision import precision
from workshop.predict.interval import (
    MEMORY_DOUBTS,
    TIME_DOUBTS,
    Bars,
    Difference,
    memory_doubts,
    model_doubts,
    time_doubts,
    with_outside,
)
from workshop.published.fit import SETS
from workshop.published.left_out import COMPARED, LeftOut
from workshop.published.record import DEVICE, RESERVED, TIMES, MeasuredRun
from workshop.published.regimes import source, unique_weights

TAIL = 0.1
DOUBT = "undescribed"
PRIOR = 1 / (2 * np.log(2) ** 2)


@dataclass(frozen=True)
class Sample:
    """Residuals of one kind with what decides their scale.

    doubts: [rows, doubts], of 0 and 1. weights: of unique configurations. likeness: how alike rows of one
    source are, where that is known otherwise.
    """

    names: tuple[str, ...]
    sources: np.ndarray
    residuals: np.ndarray
    doubts: np.ndarray
    weights: np.ndarray
    likeness: float | None = None

    def take(self, mine: np.ndarray) -> Sample:
        """Some of the rows."""
        return replace(
            self,
            sources=self.sources[mine],
            residuals=self.residuals[mine],
            doubts=self.doubts[mine],
            weights=self.weights[mine],
        )

    @cached_property
    def alike(self) -> float:
        """Intraclass correlation: the share of the residuals' mean square that lies between sources."""
        if self.likeness is not None:
            return self.likeness
        between, within = [], []
        for name in np.unique(self.sources):
            mine = self.sources == name
            mean = np.average(self.residuals[mine], weights=self.weights[mine])
            spread = np.average((self.residuals[mine] - mean) ** 2, weights=self.weights[mine])
            within.append(spread)
            between.append(mean**2 - spread / self.weights[mine].sum())
        share = np.mean(between) / (np.mean(between) + np.mean(within))
        return float(np.clip(share, 0, 1))

    @cached_property
    def votes(self) -> np.ndarray:
        """Weights that sum to each source's effective number of rows."""
        weights = self.weights.copy()
        for name in np.unique(self.sources):
            mine = self.sources == name
            weights[mine] /= 1 + max(weights[mine].sum() - 1, 0) * self.alike
        return weights


def known_beside(records: Sequence[MeasuredRun], left: str | None, kind: str) -> Bars:
    """The devices that rows of other sources were fitted on, and the stacks that they ran.

    left: the source that is left out; None for none of them. kind: of rows that measure "time" or "memory".
    """
    quantities = TIMES if kind == "time" else COMPARED
    others = [r for r in records if source(r) != left and r.observations(quantities)]
    if kind == "memory":
        return Bars(1, 0, 0, stacks=frozenset(record.run.implementation.name for record in others))
    fitted = {name for devices, _ in SETS.values() for name in devices}
    named = [record for record in others if "stack" not in dict(record.assumed)]
    return Bars(
        1,
        0,
        0,
        devices=frozenset(fitted & {record.run.cluster.device.name for record in others}),
        stacks=frozenset(f"{x.run.implementation.name}/{x.software.name}" for x in named),
    )


def sample(rows: Sequence[LeftOut], kind: str, axis: str = "source") -> Sample:
    """The residuals of "time" or "memory" with the doubts that each row has without its source."""
    mine = [row for row in rows if row.is_time == (kind == "time")]
    records = [row.one.record for row in mine]
    names = names_of(kind)
    known = {name: known_beside(records, name, kind) for name in {source(record) for record in records}}
    doubts = [set(doubts_of(row, known[source(row.one.record)])) for row in mine]
    return Sample(
        names,
        np.array([source(record) for record in records]),
        np.array([row.residual(axis) for row in mine]),
        np.array([[name in one for name in names] for one in doubts], float),
        unique_weights([row.one for row in mine]),
    )


def names_of(kind: str) -> tuple[str, ...]:
    """The doubts of "time" or "memory" that left-out rows tell of: all but that nobody had described them."""
    return tuple(name for name in (TIME_DOUBTS if kind == "time" else MEMORY_DOUBTS) if name != DOUBT)


def doubts_of(row: LeftOut, known: Bars, described: bool = True) -> tuple[str, ...]:
    """The doubts about a measured row; a stack that its source does not name is in doubt.

    described: whether somebody had looked at the row's program when it was predicted.
    """
    record = row.one.record
    if not row.is_time:
        run = record.run
        of_model = model_doubts(run.model, precision(run.layout.precision), run.adapter)
        library, pipeline = run.implementation.name, run.layout.pipeline > 1
        kept = memory_doubts(of_model, library, pipeline, known, described)
        return with_outside(kept) if row.one.quantity in (RESERVED, DEVICE) else kept
    doubts = time_doubts(record.run, record.software.name, known, described)
    unnamed = "stack" in dict(record.assumed) and "stack" not in doubts
    return (*doubts, "stack") if unnamed else doubts


def scales(some: Sample, rounds: int = 400) -> np.ndarray:
    """Logarithms of the scale and of each doubt's `wider`, by projected Newton steps; the sum is convex."""
    size, weight = np.maximum(np.abs(some.residuals), 1e-4), some.votes
    design = np.column_stack([np.ones(len(size)), some.doubts])
    prior = np.array([0.0, *(2 * PRIOR for _ in some.names)])
    x = np.zeros(len(prior))
    x[0] = np.log(np.average(size, weights=weight))
    for _ in range(rounds):
        pull = weight * size * np.exp(-design @ x)
        slope = design.T @ (weight - pull) + prior * x
        free = np.r_[True, (x[1:] > 0) | (slope[1:] < 0)]
        bend = (design.T * pull) @ design + np.diag(prior + 1e-9)
        move = np.zeros(len(x))
        move[free] = -np.linalg.solve(bend[np.ix_(free, free)], slope[free])
        new = x + np.clip(move, -0.5, 0.5)
        new[1:] = np.maximum(new[1:], 0)
        if np.abs(new - x).max() < 1e-9:
            break
        x = new
    return x


def quantile(values: np.ndarray, weights: np.ndarray, level: float) -> float:
    """The weighted quantile, each value at the middle of its weight."""
    order = np.argsort(values)
    middle = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(level, middle / weights.sum(), values[order]))


def standardised(some: Sample) -> np.ndarray:
    """Each residual over its scale, which was estimated without the residual's source."""
    z = np.empty(len(some.residuals))
    for name in np.unique(some.sources):
        mine = some.sources == name
        x = scales(some.take(~mine))
        z[mine] = some.residuals[mine] * np.exp(-x[0] - some.doubts[mine] @ x[1:])
    return z


def estimate(some: Sample, known: Bars) -> Bars:
    """The bars of these residuals, for a world in which `known` devices and stacks were measured."""
    x, z = scales(some), standardised(some)
    lower, upper = (quantile(z, some.votes, level) for level in (TAIL, 1 - TAIL))
    wider = {name: float(np.exp(v)) for name, v in zip(some.names, x[1:], strict=True)}
    return Bars(float(np.exp(x[0])), lower, upper, wider, known.devices, known.stacks)


def inside(some: Sample) -> np.ndarray:
    """Whether each residual lies in an interval to which its source gave nothing: no scale, no quantile."""
    z = standardised(some)
    held = np.zeros(len(z), bool)
    for name in np.unique(some.sources):
        mine = some.sources == name
        weight = some.take(~mine).votes
        lower, upper = (quantile(z[~mine], weight, level) for level in (TAIL, 1 - TAIL))
        held[mine] = (lower <= z[mine]) & (z[mine] <= upper)
    return held


def coverage(some: Sample) -> dict[str, float]:
    """Share of rows inside, by source; "all rows" weighs configurations alike, "mean of sources" sources."""
    held = inside(some)
    by_source = {
        str(name): float(np.average(held[some.sources == name], weights=some.weights[some.sources == name]))
        for name in dict.fromkeys(some.sources)
    }
    every = {"all rows": float(np.average(held, weights=some.weights))}
    return {**by_source, **every, "mean of sources": float(np.mean(list(by_source.values())))}


def as_toml(kinds: Mapping[str, Bars], apart: Difference) -> str:
    """The file `workshop/predict/data/intervals.toml`."""
    out = [
        "# How wide intervals are: workshop/predict/interval.py says what each number means.",
        "# Generated by `make predict-report` from data/measurements; not to be edited.",
    ]
    for kind, one in kinds.items():
        out += ["", f"[{kind}]"]
        out += [f"{name} = {getattr(one, name):.4g}" for name in ("scale", "lower", "upper")]
        for name in ("devices", "stacks"):
            listed = ", ".join(f'"{value}"' for value in sorted(getattr(one, name)))
            out.append(f"{name} = [{listed}]")
        out += [f"[{kind}.wider]", *(f"{name} = {value:.4g}" for name, value in one.wider.items())]
    out += ["", "[difference]", *(f"{name} = {value:.4g}" for name, value in asdict(apart).items())]
    return "\n".join(out) + "\n"
