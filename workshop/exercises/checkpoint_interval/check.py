"""Exercise: how often to save, so that saving and doing again together cost least (Young, 1974).

The loss is d / t + t / 2M for a save of d seconds, an interval of t and M seconds between failures. Its
derivative is zero at t = sqrt(2 d M).
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

CALLS = (
    Call((60.0, 1024, 50_677.0)),
    Call((60.0, 16_384, 50_677.0)),  # Llama 3 405B's failures (arXiv:2407.21783, section 3.3.4)
    Call((5.0, 8, 10_000.0)),
)


def _between(n: int, hours: float) -> float:
    return hours * 3600 / n


MISTAKES = (
    Mistake(
        lambda d, _, hours: sqrt(2 * d * hours * 3600),
        "That is for one device. `num_devices` of them fail `num_devices` times as often.",
    ),
    Mistake(
        lambda d, n, hours: sqrt(2 * d * hours * 3600 * n),
        "More devices fail more often, not less: divide by `num_devices`.",
    ),
    Mistake(
        lambda d, n, hours: sqrt(2 * d * hours / n),
        "`device_hours_between` are hours and `save_seconds` seconds: an hour has 3,600.",
    ),
    Mistake(
        lambda d, n, hours: sqrt(d * _between(n, hours)),
        "The 2 is missing: a failure loses half an interval on average, not a whole one.",
    ),
    Mistake(
        lambda d, n, hours: sqrt(d * _between(n, hours) / 2),
        "d / t + t / 2M is least where d / t^2 = 1 / 2M. Solve that for t again.",
    ),
    Mistake(lambda d, n, hours: 2 * d * _between(n, hours), "That is t squared: take the root."),
    Mistake(
        lambda _, n, hours: _between(n, hours),
        "That is the time from failure to failure: most of the work would be done again.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Three clusters against the closed form."""
    compare(
        names["checkpoint_interval"],
        "checkpoint_interval",
        CALLS,
        lambda d, n, hours: sqrt(2 * d * _between(n, hours)),
        MISTAKES,
        rel_tol=1e-4,  # who searches for the least loss comes no nearer: it is flat there
    )
    return "1,024 devices, one minute a save: every 77 minutes. 16,384 devices: every 19."
