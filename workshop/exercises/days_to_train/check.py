"""Exercise: days of a run in stages, from FLOPs, devices and the share of their peak.

The figure to reproduce: 70 billion parameters, 15 trillion tokens, 1,024 H100 at half of 989 TFLOP/s, 144
days. A run of two stages tells a sum of times from a time at a mean share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

Stages = list[tuple[float, int, float]]

DAY = 24 * 60 * 60
CALLS = (
    Call(([(6 * 70e9 * 15e12, 1024, 0.5)], 989e12)),
    Call(([(3e24, 1024, 0.5), (3e24, 512, 0.2)], 989e12)),
    Call(([(1e18, 1, 0.25), (4e18, 8, 0.5), (1e18, 2, 0.4)], 1e12)),
)


def _days(seconds: Callable[[float, int, float, float], float]) -> Callable[[Stages, float], float]:
    """The formula that adds up ``seconds(flops, devices, peak, share)`` of the stages."""
    return lambda stages, peak: sum(seconds(f, n, peak, share) for f, n, share in stages) / DAY


_right = _days(lambda f, n, peak, share: f / (n * peak * share))


def _at_mean_share(stages: Stages, peak: float) -> float:
    flops = sum(f for f, _, _ in stages)
    devices = sum(n for _, n, _ in stages) / len(stages)
    share = sum(share for _, _, share in stages) / len(stages)
    return flops / (devices * peak * share) / DAY


def _side_by_side(stages: Stages, peak: float) -> float:
    return sum(f for f, _, _ in stages) / sum(n * peak * share for _, n, share in stages) / DAY


MISTAKES = (
    Mistake(lambda stages, peak: DAY * _right(stages, peak), "These are seconds. A day has 86,400 of them."),
    Mistake(lambda stages, peak: 24 * _right(stages, peak), "These are hours. A day has 24 of them."),
    Mistake(
        _days(lambda f, n, peak, _: f / (n * peak)),
        "That is the time at the full peak. The third number of a stage is the share of it that is reached.",
    ),
    Mistake(
        _days(lambda f, n, peak, share: f * share / (n * peak)),
        "A lower share of the peak must make a stage longer, not shorter: divide by the share.",
    ),
    Mistake(
        _days(lambda f, _, peak, share: f / (peak * share)),
        "That is one device. The second number of a stage says how many share the work.",
    ),
    Mistake(
        lambda stages, peak: _right(stages[-1:], peak),
        "That is only the last stage. Add up the times of all stages.",
    ),
    Mistake(
        lambda stages, peak: _right(stages[:1], peak),
        "That is only the first stage. Add up the times of all. (A `return` inside the loop ends it.)",
    ),
    Mistake(
        lambda stages, peak: max(_right([stage], peak) for stage in stages),
        "That is only the longest stage. The stages follow each other, so add up their times.",
    ),
    Mistake(
        _side_by_side,
        "All FLOPs over the speed of all devices would be right if the stages ran side by side. They follow "
        "each other, so add up the time of each.",
    ),
    Mistake(
        _at_mean_share,
        "A mean of the shares, and of the devices, counts a short stage as much as a long one. Take the time "
        "of each stage, and add.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Runs of one, two and three stages against the sum of their seconds, over 86,400."""
    compare(names["days_to_train"], "days_to_train", CALLS, _right, MISTAKES)
    return "70B on 15T tokens with 1,024 H100 at half their peak: 144 days."
