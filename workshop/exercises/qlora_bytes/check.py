"""Exercise: what QLoRA keeps, on paper.

Dettmers et al. 2023, arXiv 2305.14314, section 3: 4 bits a frozen weight, 32 bits for each 64 as their
scale; double quantization makes those 8 bits and an fp32 number for each 256 of them.
"""

from __future__ import annotations

from collections.abc import Callable

from workshop.exercises.engine.check import Call, Mistake, compare

Formula = Callable[..., float]


def _formula(twice: float, once: float = 32 / 64) -> Formula:
    """Bytes where a frozen weight's share of the scales is so many bits, with double quantization and "
    "without."""

    def qlora_bytes(frozen: int, trained: int, double: bool = True) -> float:
        return frozen * (4 + (twice if double else once)) / 8 + 16 * trained

    return qlora_bytes


CALLS = (
    Call((64 * 256, 0)),
    Call((64 * 256, 0), {"double": False}),
    Call((64 * 256, 1000)),
    Call((65_000_000_000, 0)),
    Call((70_000_000_000, 828_000_000)),
)

MISTAKES = (
    Mistake(_formula(0, 0), "That counts only the 4 bits of each weight: the scales are missing."),
    Mistake(_formula(32 / 64), "`double` changes nothing yet: with it, the scales take 8 bits."),
    Mistake(
        _formula(8 / 64), "The fp32 number that 256 scales share is missing: it is small, but it counts."
    ),
    Mistake(
        _formula(8 / 64 + 32 / 256),
        "The fp32 number is shared by 256 *scales*, and each of these stands for 64 weights.",
    ),
    Mistake(_formula(8 + 32 / 256, 32), "64 weights share a scale: divide by 64."),
)


def check(names: dict) -> str:
    """One block of blocks, with and without double quantization, and two models."""
    compare(names["qlora_bytes"], "qlora_bytes", CALLS, _formula(8 / 64 + 32 / (64 * 256)), MISTAKES)
    return "65 billion weights take 33.5 GB: with adapters and activations, they fit on one GPU of 48 GB."
