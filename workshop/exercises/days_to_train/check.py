"""Exercise: FLOPs, devices, their peak and the share of it that is reached make days.

The figure to reproduce: 70 billion parameters, 15 trillion tokens, 1,024 H100 at half of 989 TFLOP/s, 144
days.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

DAY = 24 * 60 * 60
CALLS = (
    Call((6 * 70e9 * 15e12, 1024, 989e12, 0.5)),
    Call((3.8e25, 16384, 989e12, 0.4)),  # Llama 3 405B's FLOPs and MFU (arXiv:2407.21783)
    Call((1e18, 1, 1e12, 0.25)),
)

MISTAKES = (
    Mistake(lambda f, n, peak, mfu: f / (n * peak * mfu), "These are seconds. A day has 86,400 of them."),
    Mistake(lambda f, n, peak, mfu: f / (n * peak * mfu) / 3600, "These are hours. A day has 24 of them."),
    Mistake(
        lambda f, n, peak, _: f / (n * peak) / DAY,
        "That is the time at the full peak. `mfu` is the share of it that is reached.",
    ),
    Mistake(
        lambda f, n, peak, mfu: f / (n * peak) * mfu / DAY,
        "A lower share of the peak must make the run longer, not shorter: divide by `mfu`.",
    ),
    Mistake(
        lambda f, _, peak, mfu: f / (peak * mfu) / DAY,
        "That is one device. `num_devices` of them share the work.",
    ),
    Mistake(
        lambda f, n, peak, mfu: 6 * f / (n * peak * mfu) / DAY,
        "`flops` are already all FLOPs of the run: the 6 of parameters and tokens is in them.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Three runs against seconds over 86,400."""
    compare(
        names["days_to_train"],
        "days_to_train",
        CALLS,
        lambda f, n, peak, mfu: f / (n * peak * mfu) / DAY,
        MISTAKES,
    )
    return "70B on 15T tokens with 1,024 H100 at half their peak: 144 days."
