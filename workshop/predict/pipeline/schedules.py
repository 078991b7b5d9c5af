"""Pipeline parallelism: which schedule, how large a bubble, how much memory.

Cut a model into p stages on p ranks and one micro-batch alone keeps one rank busy and p - 1 waiting. Send m
micro-batches one behind another and the waiting shrinks to the time the pipe takes to fill and to drain: the
**bubble**, (p - 1)(F + B) of a total of (m + p - 1)(F + B). Every schedule since has been a way to make that
smaller without holding more activations, and every one can be tried here:

>>> result = simulate_pipeline("1f1b", 4, 8, Durations(forward=1.0, backward=2.0))
>>> result.bubble_seconds, result.idle_share, result.peak_in_flight.tolist()
(9.0, 0.27272727272727276, [4, 3, 2, 1])

Nothing is assumed but the order of each rank's actions (`orders`, `zero_bubble`, `controllable`,
`bidirectional`); `simulate` plays them. `closed` has the
formulas, which a search over a million layouts needs, and a test holds the two equal.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from workshop.predict.pipeline.bidirectional import dual_pipe, dual_pipe_v
from workshop.predict.pipeline.closed import CHUNKED
from workshop.predict.pipeline.controllable import v_half, v_min
from workshop.predict.pipeline.orders import breadth_first, gpipe, interleaved, naive, one_f_one_b
from workshop.predict.pipeline.simulate import Durations, Orders, PipelineTimeline, play
from workshop.predict.pipeline.zero_bubble import zb_h1, zb_h2, zbv

_PLAIN: dict[str, Callable[[int, int], Orders]] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zbv": zbv,
    "v-half": v_half,
    "v-min": v_min,
    "dualpipe": dual_pipe,
    "dualpipev": dual_pipe_v,
}
_CHUNKED: dict[str, Callable[[int, int, int], Orders]] = {
    "interleaved": interleaved,
    "breadth-first": breadth_first,
}
SCHEDULES: tuple[str, ...] = (*_PLAIN, *_CHUNKED)
assert set(_CHUNKED) == set(CHUNKED)


def pipeline_orders(schedule: str, ranks: int, micro_batches: int, chunks: int = 1) -> Orders:
    """Per rank, its actions in order, for one of `SCHEDULES`.

    chunks: stages per rank; only "interleaved" and "breadth-first" take more than one.
    Raises ValueError for an unknown schedule, or numbers it cannot be run with (it says which would do).
    """
    if schedule not in SCHEDULES:
        near = difflib.get_close_matches(schedule, SCHEDULES, 1)
        raise ValueError(
            f"unknown pipeline schedule {schedule!r}; known: {', '.join(SCHEDULES)}"
            + (f". Did you mean {near[0]!r}?" if near else "")
        )
    for name, value in (("ranks", ranks), ("micro_batches", micro_batches), ("chunks", chunks)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if schedule in _CHUNKED:
        return _CHUNKED[schedule](ranks, micro_batches, chunks)
    if chunks != 1:
        raise ValueError(
            f"{schedule} has a fixed placement and takes no chunks, but chunks={chunks}; "
            f"use {' or '.join(_CHUNKED)}"
        )
    return _PLAIN[schedule](ranks, micro_batches)


def simulate_pipeline(
    schedule: str,
    ranks: int,
    micro_batches: int,
    durations: Durations,
    chunks: int = 1,
    communication_seconds: float = 0.0,
) -> PipelineTimeline:
    """Plays a schedule and returns its timeline (seconds, bubble, idle share, peak in flight, Gantt events).

    durations: seconds of one *stage*, one number or one per stage in the order of the model (`chunks` stages
        per rank for chunked schedules, two per rank for zbv and dualpipev).
    communication_seconds: to hand a micro-batch to the next stage on another rank.
    """
    return play(pipeline_orders(schedule, ranks, micro_batches, chunks), durations, communication_seconds)
