"""Training on islands that are far apart: talk every H steps instead of every step.

Data parallelism over a slow link reduces all gradients at each step, and the link sets the pace. DiLoCo
(Douillard et al., arXiv 2311.08105) lets every island train on its own for H steps with AdamW, and then
averages what the parameters have moved, as a gradient for an outer optimizer (SGD with Nesterov momentum).
Traffic falls H-fold:

    seconds per step = inner step + exposed outer all-reduce / H

With P parameters in b bytes each, n islands and a link of r bytes/s, the outer all-reduce takes 2 (n-1)/n P
b / r. Streaming DiLoCo (arXiv 2501.18512) sends a fragment of the parameters at a time while training goes
on, so that only what H inner steps cannot hide is waited for, and in 4 bits (b = 0.5). How large H may be is
a question of learning, not of arithmetic: the papers use 100 to 500.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workshop.facts.checks import check_positive
from workshop.facts.device import LinkSpec
from workshop.predict.collectives import wire_bytes


@dataclass(frozen=True)
class Islands:
    """`count` islands joined by `link` (its rate is what one island has), talking every `inner_steps` steps.

    outer_bytes: per parameter on the wire. streaming: fragments are sent while training goes on.
    """

    count: int
    link: LinkSpec
    inner_steps: int = 100
    outer_bytes: float = 4.0
    streaming: bool = False

    def __post_init__(self) -> None:
        check_positive("islands: count", self.count)
        check_positive("islands: inner_steps", self.inner_steps)

    def outer_seconds(self, num_params: float) -> float:
        """Averaging `num_params` parameters over the islands."""
        moved = float(wire_bytes("all_reduce", num_params * self.outer_bytes, self.count))
        return self.link.seconds(moved) if self.count > 1 else 0.0

    def seconds_per_step(self, inner_seconds: float, num_params: float) -> float:
        """Mean time of a step, its share of the outer one included."""
        outer = self.outer_seconds(num_params)
        if self.streaming:
            outer = max(0.0, outer - self.inner_steps * inner_seconds)
        return inner_seconds + outer / self.inner_steps

    def efficiency(self, inner_seconds: float, num_params: float) -> float:
        """Share of the time in which the islands train."""
        return inner_seconds / self.seconds_per_step(inner_seconds, num_params)


def fewest_inner_steps(
    islands: Islands, inner_seconds: float, num_params: float, efficiency: float = 0.95
) -> int:
    """The smallest H at which the link costs at most 1 - `efficiency` of the time.

    Raises ValueError for an efficiency outside 0 to 1.
    """
    if not 0 < efficiency < 1:
        raise ValueError(f"efficiency is {efficiency}; it is a share between 0 and 1")
    outer = islands.outer_seconds(num_params)
    spare = inner_seconds * (1 / efficiency - 1)
    hidden = inner_seconds if islands.streaming else 0.0
    return max(1, math.ceil(outer / (spare + hidden) - 1e-9))  # 8,512 steps are not 8,513 for a rounding
