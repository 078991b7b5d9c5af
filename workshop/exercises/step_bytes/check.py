"""Exercise: the bytes of weights, gradients and optimizer state, in fp32 and in mixed precision.

16 bytes a parameter with AdamW, either way: 4 + 4 + 8 in fp32, 2 + 2 + 4 + 8 in mixed precision, where
the 4 is the fp32 master copy (Rajbhandari et al., arXiv:1910.02054, section 3.1).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

CALLS = (
    Call((7_000_000_000,)),
    Call((7_000_000_000, 2)),
    Call((1000,), {"num_moments": 1}),  # SGD with momentum
    Call((1000, 2, 0)),  # plain SGD
)


def _bytes(
    gradients: bool = True, master: str = "narrow", moment_bytes: int = 4, most_moments: int = 9
) -> Any:
    """A formula with one thing wrong."""

    def formula(p: int, value_bytes: int = 4, num_moments: int = 2) -> int:
        copy = {"never": 0, "narrow": 4 * (value_bytes < 4), "always": 4}[master]
        each = moment_bytes or value_bytes
        return p * (value_bytes * (1 + gradients) + copy + each * min(num_moments, most_moments))

    return formula


MISTAKES = (
    Mistake(_bytes(gradients=False), "The gradients are missing. Every weight has one, of the same size."),
    Mistake(
        _bytes(master="never"),
        "In 16 bits a small update would be rounded away, so the optimizer keeps an fp32 master copy.",
    ),
    Mistake(
        _bytes(master="always"), "In fp32 the weights are their own master copy, and there is no second one."
    ),
    Mistake(_bytes(moment_bytes=0), "The moments stay in fp32, whatever the weights are in."),
    Mistake(
        _bytes(master="never", moment_bytes=0),
        "Master copy and moments are in fp32, whatever the weights are in.",
    ),
    Mistake(
        _bytes(most_moments=1),
        "AdamW keeps two moments, of the gradient and of its square: `num_moments` of them.",
    ),
    Mistake(_bytes(most_moments=0), "The moments are missing: `num_moments` more values for each parameter."),
)


def check(names: dict[str, Any]) -> str:
    """Four calls, in fp32 and in 16 bits, with two moments, one and none."""
    compare(names["step_bytes"], "step_bytes", CALLS, _bytes(), MISTAKES)
    return "7 billion parameters with AdamW: 112 GB in fp32, and 112 GB in mixed precision."
