"""Exercise: what one layer keeps for backward, after Korthikanti et al. (arXiv:2205.05198, equation 1).

A GPT layer in 16 bits, with dropout and without flash attention, keeps s b h (34 + 5 a s / h) bytes. The
second part is the attention core, quadratic in the sequence; selective recomputation drops it (section
5), full recomputation keeps only the layer's input, 2 s b h (table 2).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

CALLS = (
    Call((2048, 1, 12288, 96)),  # GPT-3
    Call((2048, 1, 12288, 96, "selective")),
    Call((2048, 1, 12288, 96, "full")),
    Call((1024, 4, 4096, 32)),
    Call((1024, 4, 4096, 32, "full")),
)


def _kept(
    linear: float = 34, core: float = 5, selective: float = 34, full: float = 2, batch: bool = True
) -> Any:
    """A formula with one thing wrong."""

    def formula(s: int, b: int, h: int, a: int, recompute: str = "none") -> float:
        each = {"none": linear + core * a * s / h, "selective": selective, "full": full}[recompute]
        return s * (b if batch else 1) * h * each

    return formula


def _outside(s: int, b: int, h: int, a: int, recompute: str = "none") -> float:
    return {"none": 34 * s * b * h + 5 * a * s / h, "selective": 34 * s * b * h, "full": 2 * s * b * h}[
        recompute
    ]


MISTAKES = (
    Mistake(
        _kept(core=0), "Without recomputation the attention core is kept too: 5 a s / h more for each value."
    ),
    Mistake(_kept(batch=False), "`micro_batch` sequences are in flight at once, and each keeps its own."),
    Mistake(_kept(full=0), "Full recomputation must begin somewhere, so it keeps the layer's input."),
    Mistake(_kept(full=1), "The input has 16 bits a value, which is two bytes."),
    Mistake(_kept(full=4), "The input has 16 bits a value, not 32. That is two bytes."),
    Mistake(_kept(selective=0), "Selective recomputation drops only what grows with s squared; the 34 stay."),
    Mistake(_kept(selective=2), "Selective recomputation drops only what grows with s squared; the 34 stay."),
    Mistake(_outside, "Both parts belong inside the brackets: the core is multiplied by s b h as well."),
)


def check(names: dict[str, Any]) -> str:
    """Five layers against equation 1 and its two shorter forms."""
    compare(names["activation_bytes"], "activation_bytes", CALLS, _kept(), MISTAKES)
    return (
        "A layer of GPT-3 keeps 2.9 GB for each sequence; 0.86 GB with selective "
        "recomputation, 0.05 GB with full."
    )
