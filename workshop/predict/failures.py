"""What failures take: how often to save, and how much of the time is left for training.

N devices fail N times as often as one. With a mean of M seconds between failures of the whole job, a save
that stops training for d seconds, and one every t seconds of work, the first-order loss is

    d / t        for saving
    t / 2M       for what is done again: on average half an interval for each failure

whose sum is least at t = sqrt(2 d M) (Young, Comm. ACM 17(9), 1974). Daly (Future Generation Computer Systems
22, 2006, equations 20 and 37) gives the exact mean for failures at random times, and a better optimum:

    wall / work = M e^(R/M) (e^((t + d)/M) - 1) / t                     R: seconds of a restart
    t = sqrt(2dM) [1 + 1/3 (d/2M)^(1/2) + 1/9 (d/2M)] - d               for d < 2M, else M

The inverse of the first is the **goodput**. `simulate_goodput` plays failures one by one and knows neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, sqrt

import numpy as np


@dataclass(frozen=True)
class Failures:
    """How often a job is interrupted, and what a restart takes.

    device_hours_between: device hours in all from one failure to the next. restart_seconds: from a failure to
    the first new step.
    Default: Llama 3 405B, 419 unexpected interruptions in 54 days on 16,384 H100 (arXiv 2407.21783, section
    3.3.4). That restart time is not published; it is ours to assume.
    """

    device_hours_between: float = 16_384 * 54 * 24 / 419
    restart_seconds: float = 600.0

    def __post_init__(self) -> None:
        _positive("device_hours_between", self.device_hours_between)
        if self.restart_seconds < 0:
            raise ValueError(f"restart_seconds is {self.restart_seconds}; it cannot be negative")

    def seconds_between(self, num_devices: int) -> float:
        """Mean seconds between two failures of a job on so many devices."""
        _positive("num_devices", num_devices)
        return self.device_hours_between * 3600 / num_devices


def young_interval(save_seconds: float, seconds_between: float) -> float:
    """Seconds of work between two saves after Young: sqrt(2 d M)."""
    _check(save_seconds, seconds_between)
    return sqrt(2 * save_seconds * seconds_between)


def daly_interval(save_seconds: float, seconds_between: float) -> float:
    """Seconds of work between two saves after Daly's higher-order estimate."""
    _check(save_seconds, seconds_between)
    if save_seconds >= 2 * seconds_between:
        return seconds_between
    x = save_seconds / (2 * seconds_between)
    return sqrt(2 * save_seconds * seconds_between) * (1 + sqrt(x) / 3 + x / 9) - save_seconds


def goodput(
    interval_seconds: float, save_seconds: float, seconds_between: float, restart_seconds: float = 0.0
) -> float:
    """Share of the time that ends in kept work, 0 to 1; 0 where a save is never reached (Daly)."""
    _check(save_seconds, seconds_between)
    _positive("interval_seconds", interval_seconds)
    m = seconds_between
    span = (interval_seconds + save_seconds) / m
    if span > 700:
        return 0.0
    return interval_seconds / (m * exp(restart_seconds / m) * expm1(span))


def simulate_goodput(
    interval_seconds: float,
    save_seconds: float,
    seconds_between: float,
    restart_seconds: float = 0.0,
    *,
    intervals: int = 20_000,
    seed: int = 0,
) -> float:
    """The same by play: so many intervals are worked and saved, and failures come at random times.

    A failure during a restart begins the restart again.
    """
    draw = np.random.default_rng(seed)
    wall = 0.0
    until = draw.exponential(seconds_between)
    needed = interval_seconds + save_seconds
    for _ in range(intervals):
        restart = 0.0
        while until < restart + needed:  # lost: back to the last save
            wall += until
            until = draw.exponential(seconds_between)
            restart = restart_seconds
        wall += restart + needed
        until -= restart + needed
    return intervals * interval_seconds / wall


def _positive(what: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{what} is {value}; it must be more than 0")


def _check(save: float, between: float) -> None:
    _positive("save_seconds", save)
    _positive("seconds_between", between)
