"""Exercise: how large a model a budget of FLOPs should train.

Hoffmann et al. 2022 (Chinchilla), arXiv 2203.15556, equation 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, number, shown

NAME = "compute_optimal"
TOLERANCE = 0.01  # the question allows a search
CALLS = (
    Call((1e21, 406.4, 410.7, 0.34, 0.28)),
    Call((1e23, 406.4, 410.7, 0.34, 0.28)),
    Call((6e10, 20.0, 400.0, 0.4, 0.5)),
    Call((6e12, 100.0, 30.0, 0.3, 0.3)),
)
Law = Callable[..., float]


def _balanced(flops: float, ratio: float, alpha: float, beta: float) -> float:
    return (ratio * (flops / 6) ** beta) ** (1 / (alpha + beta))


def _right(flops: float, a: float, b: float, alpha: float, beta: float) -> float:
    return _balanced(flops, alpha * a / (beta * b), alpha, beta)


MISTAKES: tuple[tuple[Law, str], ...] = (
    (
        lambda flops, *law: _right(6 * flops, *law),
        "Each parameter costs 6 FLOPs for each token: D = flops / (6 * N).",
    ),
    (
        lambda flops, a, b, alpha, beta: _balanced(flops, a / b, alpha, beta),
        "Here the two terms are equal. At the minimum their derivatives are, which brings in alpha and beta.",
    ),
    (
        lambda flops, *law: flops / 6 / _right(flops, *law),
        "That is the number of tokens; wanted the number of parameters.",
    ),
    (
        lambda flops, *_: math.sqrt(flops / 6),
        "That makes N equal to D, half of the budget's powers of ten for each, whatever the law says.",
    ),
    (
        lambda flops, a, b, alpha, beta: _right(flops, a, b, alpha, beta) ** (alpha + beta),
        "That is N to the power of alpha + beta: take the root.",
    ),
)


def _near(answer: list[float], law: Law) -> bool:
    pairs = zip(answer, (made.of(law) for made in CALLS), strict=True)
    return all(abs(value / wanted - 1) < TOLERANCE for value, wanted in pairs)


def check(names: dict[str, Any]) -> str:
    """Four budgets under three laws, to one per cent."""
    answers = [number(call(names[NAME], NAME, made), made.written(NAME)) for made in CALLS]
    if _near(answers, _right):
        return "Four budgets under three laws: each model is the one that makes the most of it."
    advice = next((words for law, words in MISTAKES if _near(answers, law)), "")
    for made, value in zip(CALLS, answers, strict=True):
        wanted = made.of(_right)
        if not abs(value / wanted - 1) < TOLERANCE:
            raise Wrong(
                f"`{made.written(NAME)}` gave {shown(value)}; wanted {shown(wanted)}. {advice}".rstrip()
            )
    raise Wrong(advice)
