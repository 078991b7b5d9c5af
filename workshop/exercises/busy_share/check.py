"""Exercise: the share of a window in which a device did anything, from the spans of a trace.

A GPU runs kernels on several streams at once, so spans overlap, and a sum of lengths can exceed the window.
What counts is the length of their union. NVML's utilisation has the same meaning (NVIDIA, *NVML API Reference
Guide*, ``nvmlUtilization_t``: the share of time in which one or more kernels ran).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

CALLS = (
    Call(([(0.0, 1.0), (2.0, 3.0)], 0.0, 4.0)),
    Call(([(2.0, 3.0), (0.0, 2.5)], 0.0, 4.0)),
    Call(([(0.0, 4.0), (1.0, 2.0), (3.0, 5.0)], 0.0, 8.0)),
    Call(([(-1.0, 1.0), (3.0, 9.0)], 0.0, 4.0)),
    Call(([(5.0, 6.0)], 0.0, 4.0)),
    Call(([], 1.0, 2.0)),
)


def _union(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    """Right, and written in another way than the solution: between two neighbouring borders all is one."""
    borders = sorted({begin, end, *(b for span in spans for b in span if begin < b < end)})
    pieces = pairwise(borders)
    busy = sum(b - a for a, b in pieces if any(start <= a and b <= stop for start, stop in spans))
    return busy / (end - begin)


def _clipped(spans: list[tuple[float, float]], begin: float, end: float) -> list[tuple[float, float]]:
    return [(max(a, begin), min(b, end)) for a, b in spans if min(b, end) > max(a, begin)]


def _sum(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    return sum(b - a for a, b in _clipped(spans, begin, end)) / (end - begin)


def _unclipped(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    borders = [b for span in spans for b in span] or [begin, end]
    low, high = min(borders), max(borders)
    return _union(spans, low, high) * (high - low) / (end - begin) if spans else 0.0


def _own_window(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    inside = _clipped(spans, begin, end)
    if not inside:
        return 0.0
    return _union(inside, min(a for a, _ in inside), max(b for _, b in inside))


def _last_end(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    busy, reached = 0.0, begin
    for a, b in sorted(_clipped(spans, begin, end)):
        busy += max(b - max(a, reached), 0.0)
        reached = b
    return busy / (end - begin)


MISTAKES = (
    Mistake(lambda s, b, e: 1 - _union(s, b, e), "That is the idle share. The busy share is 1 minus that."),
    Mistake(_sum, "Where two kernels run at the same time, that time counts once."),
    Mistake(_unclipped, "Some spans reach beyond the window. Only what lies inside it counts."),
    Mistake(
        _own_window,
        "The device is idle before the first span and after the last one, too: divide by the window you were "
        "given.",
    ),
    Mistake(
        _last_end,
        "A short span inside a long one ends earlier than the long one: `reached` must never go back.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Apart, overlapping, one inside another, beyond the window, outside it, none."""
    compare(names["busy_share"], "busy_share", CALLS, _union, MISTAKES)
    return "Busy is the union of the spans over the window. It says that something ran, not how much."
