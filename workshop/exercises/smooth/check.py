"""Exercise: SmoothQuant, folded into what makes the inputs.

Xiao et al. 2022, arXiv 2211.10438, section 4: s_j = max|X_j|^alpha / max|W_j|^(1 - alpha); X / s times s W.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

Answer = tuple[Any, list[Any]]


def _column_max(weights: list[Any]) -> Any:
    import torch

    return torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)


def _s(x_max: Any, weights: list[Any], alpha: float) -> Any:
    return (x_max**alpha / _column_max(weights) ** (1 - alpha)).clamp(min=1e-5)


def _with(s: Any, before: Any, weights: list[Any]) -> Answer:
    return before / s.view(-1, *[1] * (before.ndim - 1)), [weight * s for weight in weights]


def _right(x_max: Any, before: Any, weights: list[Any], alpha: float) -> Answer:
    return _with(_s(x_max, weights, alpha), before, weights)


def _unclamped(x_max: Any, before: Any, weights: list[Any], alpha: float) -> Answer:
    return _with(x_max**alpha / _column_max(weights) ** (1 - alpha), before, weights)


def _swapped(x_max: Any, before: Any, weights: list[Any], alpha: float) -> Answer:
    return _with(_flip(x_max, weights, alpha), before, weights)


def _flip(x_max: Any, weights: list[Any], alpha: float) -> Any:
    return x_max ** (1 - alpha) / _column_max(weights) ** alpha


def _other_way(x_max: Any, before: Any, weights: list[Any], alpha: float) -> Answer:
    return _with(1 / _s(x_max, weights, alpha), before, weights)


def _one_number(x_max: Any, before: Any, weights: list[Any], alpha: float) -> Answer:
    return _with(x_max**alpha / _column_max(weights).amax() ** (1 - alpha), before, weights)


def _signed(x_max: Any, before: Any, weights: list[Any], alpha: float) -> Answer:
    import torch

    top = torch.stack([weight.amax(0).clamp(min=1e-5) for weight in weights]).amax(0)
    return _with(x_max**alpha / top ** (1 - alpha), before, weights)


MISTAKES: tuple[tuple[Callable[..., Answer], str], ...] = (
    (_unclamped, "A feature that is zero gives s = 0, and `before` is divided by it: s is at least 1e-5."),
    (_swapped, "The exponents are swapped: alpha belongs to the inputs, 1 - alpha to the weights."),
    (_other_way, "That is the other way round: inputs are divided by s, weights multiplied."),
    (_one_number, "That is one number for all columns of the weights: take the largest of each column."),
    (_signed, "A large negative weight is large too: take the magnitude."),
)


def _cases() -> list[tuple[Any, ...]]:
    import torch

    drawn = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Any:
        return torch.randn(shape, generator=drawn, dtype=torch.float64)

    readable = (torch.tensor([4.0, 100.0]), torch.ones(2), [torch.tensor([[1.0, -0.25], [0.5, 0.01]])], 0.5)
    several = (random(6).abs() + 0.1, random(6), [random(4, 6), random(3, 6)], 0.75)
    matrix = (random(5).abs() + 0.1, random(5, 3), [random(4, 5)], 0.3)
    silent = (torch.tensor([0.0, 2.0]).double(), random(2), [random(3, 2)], 0.5)  # s is held at 1e-5
    return [readable, several, matrix, silent]


def check(names: dict[str, Any]) -> str:
    """A case to read, weights that share an input, a matrix before them, and a feature that is zero."""
    for case in _cases():
        _one(names["smooth"], case)
    return "All weights that read an input share one s, and before / s and weights * s keep every product."


def _one(function: Any, case: tuple[Any, ...]) -> None:
    import torch

    x_max, before, weights, alpha = case
    given = (x_max.clone(), before.clone(), [weight.clone() for weight in weights], alpha)
    answers = call(function, "smooth", Call(given))
    if not isinstance(answers, tuple) or len(answers) != 2 or not isinstance(answers[0], torch.Tensor):
        raise Wrong(f"`smooth` gave {shown(answers)}; wanted two: `before`, divided, and a list of weights.")
    answers = (answers[0], list(answers[1]))
    wanted = _right(*case)
    if _same(answers, wanted):
        return
    ratio = answers[0] / before
    factors = [each.flatten()[0] if each.ndim else each for each in ratio]
    made = [round(float(1 / factor), 4) for factor in factors]
    right = [round(value, 4) for value in _s(x_max, weights, alpha).tolist()]
    raise Wrong(
        f"`before` is divided by {shown(made)}; wanted {shown(right)}. {_why(answers, case)}".rstrip()
    )


def _same(answer: Answer, wanted: Answer) -> bool:
    import torch

    pairs = list(zip([answer[0], *answer[1]], [wanted[0], *wanted[1]], strict=False))
    return len(answer[1]) == len(wanted[1]) and all(
        a.shape == b.shape and torch.allclose(a, b.to(a.dtype), rtol=1e-6, atol=1e-12) for a, b in pairs
    )


def _why(answer: Answer, case: tuple[Any, ...]) -> str:
    """What has been done instead."""
    import torch

    _, before, weights, _ = case
    for mistake, sentence in MISTAKES:
        if _same(answer, mistake(*case)):
            return sentence
    per_row = (before / answer[0]).reshape(len(before), -1)[:, 0]
    if torch.allclose(answer[1][0], weights[0] * per_row) and len(weights) > 1:
        return "The weights read one input, so they share one s: the largest over all of them."
    if any(
        not torch.allclose(new, weight * per_row) for new, weight in zip(answer[1], weights, strict=False)
    ):
        return "The products change: multiply the weights' columns by the s that divides `before`."
    return ""
