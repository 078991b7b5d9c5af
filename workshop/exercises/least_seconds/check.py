"""Exercise: the least time of an operator, by the roofline.

Williams, Waterman and Patterson, CACM 52(4), 2009: at most min(peak, bandwidth x intensity) FLOPs a second.
The FLOPs divided by that are the longer of two times, because arithmetic and traffic overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

CALLS = (
    Call((6e12, 2e9, 1e12, 1e12)),  # the arithmetic decides
    Call((8e9, 5e12, 1e12, 2e12)),  # the bytes decide
    Call((3e12, 9e12, 1e12, 4e12)),  # near the ridge, arithmetic
    Call((3e12, 9e12, 2e12, 4e12)),  # near the ridge, bytes
)


def _of(join: Callable[[float, float], float]) -> Callable[..., float]:
    """A formula that joins the seconds of the FLOPs and of the bytes."""
    return lambda flops, moved, peak, bandwidth: join(flops / peak, moved / bandwidth)


MISTAKES = (
    Mistake(_of(min), "That is the shorter of the two times, but the operator is done when both are done."),
    Mistake(
        _of(lambda computing, moving: computing + moving),
        "That is one after the other. The device computes while it moves, so the two times overlap.",
    ),
    Mistake(_of(lambda computing, _: computing), "The bytes may take longer than the FLOPs."),
    Mistake(_of(lambda _, moving: moving), "The FLOPs may take longer than the bytes."),
    Mistake(
        lambda flops, moved, peak, bandwidth: min(peak, bandwidth * flops / moved),
        "That is the rate, in FLOPs a second. How long do `flops` FLOPs take at this rate?",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Four operators, on both sides of the ridge, against the longer of the two times."""
    compare(names["least_seconds"], "least_seconds", CALLS, _of(max), MISTAKES)
    return "Two operators wait for the bytes, and two for the arithmetic."
