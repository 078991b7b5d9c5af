"""The learning rate as a function of the step, and of nothing else.

A scheduler that counts its own calls has a state to save and can fall out of step with the data. A function
of the step's number cannot: to resume is to call it with the next number.

``cosine`` warms up in a line and then falls along half a cosine (Loshchilov and Hutter 2016, arXiv
1608.03983, equation 5); ``linear`` falls in a line; ``wsd`` stays and falls in a line over its last fifth
(warmup-stable-decay, Hu et al. 2024, arXiv 2404.06395, section 4.2); ``constant`` only warms up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from workshop.facts.checks import check_choice, check_not_negative, check_positive

WSD_DECAY = 0.2
"""Share of the steps over which ``wsd`` falls."""

_SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
    "wsd": lambda done: min(1.0, (1 - done) / WSD_DECAY),
}


@dataclass(frozen=True)
class Schedule:
    """``schedule(step)`` is the learning rate of that step.

    Args:
        peak: the highest rate.
        name: the shape after warm-up: constant, cosine, linear or wsd.
        num_steps: steps of the whole training.
        warmup: steps in which the rate rises from ``peak / warmup`` to the peak.
        floor: the lowest rate, as a share of the peak.

    Raises ValueError for an unknown shape, and where warm-up leaves no step.
    """

    peak: float
    name: str = "constant"
    num_steps: int = 1
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        check_choice("schedule", self.name, _SHAPES)
        check_positive("num_steps", self.num_steps)
        check_not_negative("warmup", self.warmup)
        if self.name != "constant" and self.warmup >= self.num_steps:
            raise ValueError(f"warmup of {self.warmup} steps leaves nothing of {self.num_steps}")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor = {self.floor} is a share of the peak: between 0 and 1")

    def __call__(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        done = min(1.0, (step - self.warmup) / max(1, self.num_steps - self.warmup))
        return self.peak * (self.floor + (1 - self.floor) * _SHAPES[self.name](done))
