"""Exercise: the backward of a linear layer in FP8.

Gradients in E5M2, a scale for the tensor (Micikevicius et al. 2022, arXiv 2209.05433, sections 3.1, 3.2);
dgrad and wgrad read the same rounded dy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

Answer = tuple[Any, Any]
TOLERANCE = 1e-4  # of a row's norm


def _round_trip(dy: Any, form: str = "float8_e5m2", dim: int | None = None, back: bool = True) -> Any:
    import torch

    kind = getattr(torch, form)
    top = dy.abs().amax() if dim is None else dy.abs().amax(dim, keepdim=True)
    scale = top / torch.finfo(kind).max
    return (dy / scale).to(kind).float() * (scale if back else 1)


def _products(dy: Any, x: Any, weight: Any) -> Answer:
    return dy @ weight, dy.T @ x


def _to_448(dy: Any) -> Any:
    import torch

    scale = dy.abs().amax() / 448
    return (dy / scale).to(torch.float8_e5m2).float() * scale


def _signed(dy: Any, end: float = math.inf) -> Any:
    import torch

    scale = dy.amax() / torch.finfo(torch.float8_e5m2).max
    return (dy / scale).clamp(-end, end).to(torch.float8_e5m2).float() * scale


def _bare(dy: Any) -> Any:
    import torch

    return dy.to(torch.float8_e5m2).float()


SIGNED = "A large negative gradient is large too: take the magnitude."
MISTAKES: tuple[tuple[Callable[[Any], Any], str], ...] = (
    (lambda dy: dy, "dy is not rounded: it has to go through E5M2 and back."),
    (
        lambda dy: _round_trip(dy, "float8_e4m3fn"),
        "That is E4M3. Gradients go through `torch.float8_e5m2`: fewer digits, more range.",
    ),
    (_bare, "That is E5M2 without a scale: numbers too small became zero, and numbers too large infinite."),
    (
        lambda dy: _round_trip(dy, back=False),
        "The 8-bit numbers have to be multiplied by the scale again.",
    ),
    (
        lambda dy: _round_trip(dy, dim=1),
        "That is a scale for each row; here one serves the whole matrix.",
    ),
    (
        _to_448,
        "448 is where E4M3 ends. E5M2 reaches 57,344. With less of its range in use, small numbers are lost.",
    ),
    (_signed, SIGNED),
    (lambda dy: _signed(dy, 57_344), SIGNED),
)


def _cases() -> list[tuple[Any, Any, Any]]:
    import torch

    drawn = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Any:
        return torch.randn(shape, generator=drawn)

    x, weight = random(6, 5), random(8, 5)
    steep = random(6, 8) * torch.logspace(0, 3, 6)[:, None]
    steep[-1, 0] = -2 * steep.abs().amax()  # the largest is negative
    wide = steep * torch.logspace(-5.5, 0, 6)[:, None]  # as far as E5M2 reaches
    return [(steep, x, weight), (1e-7 * steep, x, weight), (1e6 * steep, x, weight), (wide, x, weight)]


def check(names: dict[str, Any]) -> str:
    """Gradients of common size, tiny ones, large ones, all of these together, and zeros."""
    cases = _cases()
    for case in cases:
        _one(names["fp8_backward"], *case)
    _zeros(names["fp8_backward"], *cases[0])
    return "dx and dw are those of a dy rounded to E5M2 once, with one scale, for small and large gradients."


def _zeros(function: Any, dy: Any, x: Any, weight: Any) -> None:
    """A dy of zeros: its amax gives no scale."""
    answer = call(function, "fp8_backward", Call((0 * dy, x.clone(), weight.clone())))
    for name, gradient in zip(("dx", "dw"), answer, strict=True):
        if gradient.isnan().any():
            why = "the scale is 0, and 0 / 0 is NaN. Keep the scale above zero."
            raise Wrong(f"Where all of dy is zero, {name} is NaN: {why}")
        if gradient.any():
            raise Wrong(f"Where all of dy is zero, {name} must be zero too; it is not.")


def _one(function: Any, dy: Any, x: Any, weight: Any) -> None:
    import torch

    answer = call(function, "fp8_backward", Call((dy.clone(), x.clone(), weight.clone())))
    if (
        not isinstance(answer, tuple)
        or len(answer) != 2
        or not all(isinstance(each, torch.Tensor) for each in answer)
    ):
        raise Wrong(f"`fp8_backward` gave {shown(answer)}; wanted a tuple of two tensors, dx and dw.")
    wanted = _products(_round_trip(dy), x, weight)
    for name, mine, right in zip(("dx", "dw"), answer, wanted, strict=True):
        if mine.shape != right.shape:
            raise Wrong(f"{name} has shape {tuple(mine.shape)}; wanted {tuple(right.shape)}.")
    if not _same(answer, wanted):
        raise Wrong(f"{_off(answer, wanted)} {_why(answer, dy, x, weight)}".rstrip())


def _same(answer: Answer, wanted: Answer) -> bool:
    return all(
        bool(((a - b).norm(dim=-1) <= TOLERANCE * b.norm(dim=-1)).all())
        for a, b in zip(answer, wanted, strict=True)
    )


def _off(answer: Answer, wanted: Answer) -> str:
    which = (
        f"a row of {name} is {((a - b).norm(dim=-1) / b.norm(dim=-1)).max().item():.2%} away"
        for name, a, b in zip(("dx", "dw"), answer, wanted, strict=True)
    )
    return f"{' and '.join(which)} from the products of the rounded dy."


def _why(answer: Answer, dy: Any, x: Any, weight: Any) -> str:
    """What has been done instead."""
    import torch

    for made, sentence in MISTAKES:
        other = _products(made(dy), x, weight)
        if all(torch.allclose(a, b, rtol=1e-4, equal_nan=True) for a, b in zip(answer, other, strict=True)):
            return sentence
    rounded, plain = _products(_round_trip(dy), x, weight), _products(dy, x, weight)
    if _same(answer, (rounded[0], plain[1])):
        return "wgrad reads dy as it came: both products have to read the rounded dy."
    if _same(answer, (plain[0], rounded[1])):
        return "dgrad reads dy as it came: both products have to read the rounded dy."
    return ""
