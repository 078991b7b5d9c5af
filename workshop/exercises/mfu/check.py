"""Exercise: model FLOPs utilization from the number that every training log has, tokens per second.

PaLM, arXiv:2204.02311, appendix B. What the model needs counts, not what the hardware does: recomputation is
left out, or wasting time would look like using it.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

CALLS = (
    Call((1_000_000, 6 * 70e9, 1024, 989e12)),
    Call((3_600, 6 * 7e9, 1, 312e12)),
    Call((512, 1e9, 4, 1e12)),
)

MISTAKES = (
    Mistake(
        lambda t, f, _, peak: t * f / peak,
        "That is how many devices at full speed would do it. There are `num_devices`.",
    ),
    Mistake(lambda t, f, n, peak: 100 * t * f / (n * peak), "That is in per cent. A share runs from 0 to 1."),
    Mistake(
        lambda t, f, n, peak: n * peak / (t * f),
        "Upside down: what was needed stands above, what the devices could do below.",
    ),
    Mistake(
        lambda t, f, n, peak: 6 * t * f / (n * peak),
        "`flops_per_token` already holds forward and backward: the 6 is in it.",
    ),
    Mistake(
        lambda t, f, n, peak: 4 / 3 * t * f / (n * peak),
        "A repeated forward pass is work of the hardware, not of the model. With it this is the HFU.",
    ),
    Mistake(
        lambda t, f, n, peak: t * f / peak * n,
        "All tokens per second are already counted, of all devices: divide by them.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Three logs against FLOPs per second over peak."""
    compare(names["mfu"], "mfu", CALLS, lambda t, f, n, peak: t * f / (n * peak), MISTAKES)
    return "A 7B model at 3,600 tokens a second on one A100 (312 TFLOP/s): 48.5 %."
