"""Exercise: the bytes a rank holds under each ZeRO stage, in mixed precision with Adam.

Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1 and figure 1: 2 bytes of weight and 2 of gradient in 16
bits, and K = 12 for what the optimizer keeps in fp32 (a master copy and two moments, 4 bytes each). Stage 1
divides the optimizer's part by the number of ranks, stage 2 the gradients too, stage 3 everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare


def _formula(cut_at: tuple[int, int, int]) -> Callable[..., float]:
    """Bytes where weights, gradients and optimizer are divided from these stages on."""

    def bytes_held(p: int, ranks: int, stage: int, optimizer_bytes: int = 12) -> float:
        parts = zip((2, 2, optimizer_bytes), cut_at, strict=True)
        return sum(p * each / (ranks if stage >= first else 1) for each, first in parts)

    return bytes_held


def _only_at_its_own(p: int, ranks: int, stage: int, optimizer_bytes: int = 12) -> float:
    """Each stage divides one thing and forgets what the stages before divided."""
    parts = zip((2, 2, optimizer_bytes), (3, 2, 1), strict=True)
    return sum(p * each / (ranks if stage == own else 1) for each, own in parts)


CALLS = (
    *(Call((1000, 4, stage)) for stage in range(4)),
    Call((7_500_000_000, 64, 1)),
    Call((7_500_000_000, 64, 2)),
    Call((1000, 4, 2), {"optimizer_bytes": 8}),
)

MISTAKES = (
    Mistake(
        _only_at_its_own, "A stage also divides what the stage before divided: stage 2 divides two things."
    ),
    Mistake(_formula((3, 9, 1)), "Here the gradients stay whole: stages 2 and 3 divide them."),
    Mistake(_formula((1, 1, 1)), "Only stage 3 divides everything."),
    Mistake(
        _formula((3, 2, 2)), "Stage 1 already divides the optimizer's numbers: they are most of the memory."
    ),
    Mistake(_formula((9, 9, 9)), "Nothing is divided here: that is stage 0."),
)


def check(names: dict[str, Any]) -> str:
    """All stages on a small number, two of the paper's, and another optimizer."""
    compare(names["zero_bytes"], "zero_bytes", CALLS, _formula((3, 2, 1)), MISTAKES)
    return "7.5 billion parameters on 64 ranks: 120, 31.4, 16.6 and 1.9 GB, the figure of the paper."
