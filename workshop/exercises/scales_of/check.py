"""Exercise: one scale for a matrix, a row or a column.

Micikevicius et al. 2022, arXiv 2209.05433, section 3.2 (the largest magnitude becomes the format's largest);
Xiao et al. 2022, arXiv 2211.10438, figure 3 (per tensor, per token, per channel).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

OVER = {"tensor": (0, 1), "row": (1,), "column": (0,)}
NUMBERS = [[1.0, -8.0, 2.0], [3.0, 4.0, -5.0]]
WITH_ZEROS = [[0.0, 0.0, 0.0], [3.0, 0.0, -5.0]]


def _right(x: Any, share: str, largest: float) -> Any:
    import torch

    amax = x.abs().amax(OVER[share], keepdim=True)
    return torch.where(amax > 0, amax / largest, 1.0)


def check(names: dict[str, Any]) -> str:
    """A matrix to read, one with zeros, and random ones of another shape, in every way of sharing."""
    import torch

    random = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    for share in OVER:
        for x in (torch.tensor(NUMBERS), random):
            for largest in (127.0, 448.0):
                _one(names["scales_of"], x, share, largest)
    for share in OVER:
        _one(names["scales_of"], torch.tensor(WITH_ZEROS), share, 127.0)
        _one(names["scales_of"], torch.zeros(2, 3), share, 127.0)
    return "One scale for all, for a row and for a column, and a group of zeros stays as it is."


def _one(function: Any, x: Any, share: str, largest: float) -> None:
    import torch

    answer = call(function, "scales_of", Call((x.clone(), share, largest)))
    if not isinstance(answer, torch.Tensor):
        raise Wrong(f"`scales_of` gave {shown(answer)} for {share!r}; wanted a tensor.")
    wanted = _right(x, share, largest)
    try:
        spread, whole = (torch.broadcast_to(each, x.shape) for each in (answer, wanted))
    except RuntimeError:
        shapes = f"{tuple(answer.shape)} does not broadcast against {tuple(x.shape)}"
        raise Wrong(f"For {share!r} the scales' shape {shapes}: keep the dim.") from None
    if torch.allclose(spread, whole, rtol=1e-5, atol=0):
        return
    first = [[round(value, 4) for value in each[0].tolist()] for each in (spread, whole)]
    advice = (
        f"For {share!r} and largest {largest:g} the scales of the first row are {shown(first[0])}; wanted "
    )
    raise Wrong(f"{advice}{shown(first[1])}. {_why(spread, x, share, largest)}".rstrip())


def _why(spread: Any, x: Any, share: str, largest: float) -> str:
    """What has been done instead."""
    import torch

    def same(other: Any) -> bool:
        return torch.allclose(spread, torch.broadcast_to(other, x.shape), rtol=1e-5, atol=0)

    if not bool((x != 0).any(dim=1).all()) and bool((spread < 1e-6).any()):
        return "A scale of 0 divides zero by zero: where all numbers are zero, the scale is 1."
    turned = {"row": "column", "column": "row", "tensor": "tensor"}[share]
    if same(_right(x, turned, largest)):
        return f"That is a scale for each {turned}."
    if same(_right(x, "tensor", largest)):
        return "That is one scale for all of it."
    if same(1 / _right(x, share, largest)):
        return "That is upside down: numbers are divided by the scale."
    if same(x.amax(OVER[share], keepdim=True) / largest):
        return "A large negative number is large too: take the magnitude."
    return ""
