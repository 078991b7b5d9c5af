"""Exercise: how many GPUs for a deadline, without the four usual ways of being wrong by 4 to 200 per cent.

A data sheet's largest number is for 2:4 sparse matrices, which pre-training does not have. An embedding is a
look-up: its parameters cost no FLOPs, those of the head do. MFU counts what the mathematics needs, so
recomputation is no part of the FLOPs. And nobody reaches the peak.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

H100 = {"bf16": 989e12, "bf16 sparse": 1979e12, "fp8": 1979e12, "fp8 sparse": 3958e12}
A100 = {"bf16": 312e12, "bf16 sparse": 624e12}
LLAMA_70B = {"embedding": 1.05e9, "layers": 68.45e9, "head": 1.05e9}
SMALL = {"embedding": 0.26e9, "layers": 0.97e9, "head": 0.26e9}
CALLS = (
    Call((LLAMA_70B, 15e12, 144.0, H100, 0.45)),
    Call((LLAMA_70B, 2e12, 30.0, A100, 0.5)),
    Call((SMALL, 9e12, 20.0, A100, 0.4)),
)

ByName = dict[str, float]
Formula = Callable[[ByName, float, float, ByName, float], float]


def _gpus(
    each: float = 6.0,
    parts: tuple[str, ...] = ("layers", "head"),
    peak: str = "bf16",
    reached: bool = True,
    rounded: Callable[[float], float] = lambda gpus: 8 * ceil(gpus / 8),
) -> Formula:
    """The right formula, or one that differs from it in one way."""

    def formula(params: ByName, tokens: float, days: float, sheet: ByName, mfu: float) -> float:
        flops = each * sum(params[part] for part in parts) * tokens
        return rounded(flops / (sheet[peak] * (mfu if reached else 1.0) * days * 86400))

    return formula


ALL = ("embedding", "layers", "head")
MISTAKES = (
    Mistake(
        _gpus(each=8.0),
        "Eight FLOPs per parameter count the recomputation. MFU counts what the mathematics needs: six.",
    ),
    Mistake(_gpus(each=2.0), "Two FLOPs per parameter are the forward pass alone; training takes six."),
    Mistake(_gpus(parts=ALL), "The embedding is a look-up: its parameters take no FLOPs. The head's do."),
    Mistake(_gpus(parts=("layers",)), "The head is a matrix product: its parameters count too."),
    Mistake(
        _gpus(peak="bf16 sparse"),
        "That is the peak for 2:4 sparse matrices. Nothing here is sparse: take the dense one, half of it.",
    ),
    Mistake(_gpus(reached=False), "That is for GPUs at their peak. They reach the share `mfu` of it."),
    Mistake(_gpus(rounded=ceil), "GPUs come in nodes of eight here: round up to whole nodes."),
    Mistake(
        _gpus(rounded=lambda gpus: 8 * (gpus // 8)),
        "Rounded down, the run ends after the deadline. Round up.",
    ),
    Mistake(_gpus(rounded=lambda gpus: gpus), "Nobody rents a part of a GPU: round up to whole nodes."),
)


def check(names: dict[str, Any]) -> str:
    """Three models and data sheets against the count of dense, useful FLOPs."""
    compare(names["gpus_for_deadline"], "gpus_for_deadline", CALLS, _gpus(), MISTAKES)
    return "Three models, on H100 and A100, in whole nodes."
