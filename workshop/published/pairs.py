"""What tells two layouts of one run apart: residuals of published pairs.

Two rows are a pair where they differ in the layout alone: same table, model, devices, sequence, global batch,
formats and stack. Of a pair, the error of the ratio is the difference of the two residuals; what both share
cancels. `workshop.predict.interval` says why it grows with the difference between the shares of time that the
two spend on each cause. Floor and slope of that scale are estimated as in `residuals`, pairs of a source as
alike as its rows; the quantile is that of pairs whose source gave nothing to floor and slope.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from workshop.predict.interval import Difference
from workshop.published.left_out import LeftOut
from workshop.published.predicted import predict_causes
from workshop.published.record import MeasuredRun
from workshop.published.regimes import source
from workshop.published.residuals import TAIL, Sample, quantile, sample

FLOORS = np.geomspace(0.002, 0.1, 24)
SLOPES = np.geomspace(0.02, 3.0, 24)
MOST = 300
"""Pairs that one run may give: a sweep of forty layouts has 780, of which few say anything new."""


def job(record: MeasuredRun) -> tuple[object, ...]:
    """What two rows of a pair share: all but the layout, the micro-batch and the accumulation."""
    run = record.run
    devices = (run.cluster.name, run.cluster.device.name, run.cluster.inter, run.layout.world_size)
    batch = (run.global_batch, run.seq_len, run.document_len)
    what = (run.layout.precision, run.adapter, record.software, run.implementation, run.optimizer)
    return (record.table, run.model, *devices, *batch, *what)


def pairs(rows: Sequence[LeftOut], axis: str = "source") -> Sample:
    """Pairs of time: residual of the ratio, and the distance between the two in shares of causes.

    Repeated measurements of one configuration are no pair: they tell nothing about layouts.
    """
    times = [row for row in rows if row.is_time]
    causes = predict_causes([row.one for row in times])
    shares = causes / causes.sum(1, keepdims=True)
    jobs: dict[object, dict[object, int]] = {}
    for index, row in enumerate(times):
        jobs.setdefault(job(row.one.record), {}).setdefault(row.one.record.run, index)
    first, second, weights = [], [], []
    for members in jobs.values():
        some = list(combinations(members.values(), 2))
        some = some[:: -(-len(some) // MOST)] if some else []
        first += [a for a, _ in some]
        second += [b for _, b in some]
        weights += [(len(members) - 1) / len(some)] * len(some) if some else []
    a, b = np.array(first, int), np.array(second, int)
    residuals = np.array([row.residual(axis) for row in times])
    return Sample(
        ("distance",),
        np.array([source(times[i].one.record) for i in a]),
        residuals[a] - residuals[b],
        np.sqrt(((shares[a] - shares[b]) ** 2).sum(1))[:, None],
        np.array(weights),
        sample(rows, "time", axis).alike,
    )


def floor_and_slope(some: Sample) -> tuple[float, float]:
    """The two that are likeliest for residuals that fall off exponentially to both sides."""
    size, weight, distance = np.abs(some.residuals), some.votes, some.doubts[:, 0]
    best = (np.inf, 0.0, 0.0)
    for floor in FLOORS:
        for slope in SLOPES:
            scale = np.sqrt(floor**2 + (slope * distance) ** 2)
            best = min(best, (float(weight @ (size / scale + np.log(scale))), floor, slope))
    return float(best[1]), float(best[2])


def _standardised(some: Sample) -> np.ndarray:
    z = np.empty(len(some.residuals))
    for name in np.unique(some.sources):
        mine = some.sources == name
        floor, slope = floor_and_slope(some.take(~mine))
        z[mine] = some.residuals[mine] / np.sqrt(floor**2 + (slope * some.doubts[mine, 0]) ** 2)
    return np.abs(z)


def estimate(some: Sample) -> Difference:
    """What tells layouts apart, from all pairs."""
    floor, slope = floor_and_slope(some)
    return Difference(floor, slope, quantile(_standardised(some), some.votes, 1 - 2 * TAIL))


def coverage(some: Sample) -> dict[str, float]:
    """Share of pairs whose ratio is as near as said, by source, from the pairs of the other sources alone."""
    z, by_source = _standardised(some), {}
    held = np.zeros(len(z), bool)
    for name in dict.fromkeys(some.sources):
        mine = some.sources == name
        margin = quantile(z[~mine], some.take(~mine).votes, 1 - 2 * TAIL)
        held[mine] = z[mine] <= margin
        by_source[str(name)] = float(np.average(held[mine], weights=some.weights[mine]))
    every = {"all pairs": float(np.average(held, weights=some.weights))}
    return {**by_source, **every, "mean of sources": float(np.mean(list(by_source.values())))}
