"""Exercise: parameters for a set of people, by definition 4.3 of Allen-Zhu and Li 2024 (arXiv 2404.05405)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, number

NAME = "parameters_for"
Case = tuple[int, int, list[int], float]
CASES: tuple[Case, ...] = (
    (10, 64, [3, 5], 2.0),
    (7, 1000, [6], 1.0),
    (100, 4096, [2, 10, 300], 0.7),
    (3, 3, [11], 3.6),
    (50_000, 160_000_000, [2, 12, 28, 200], 1.8),
)


def _bits(case: Case, *, log: Callable[[float], float] = math.log2) -> tuple[float, float]:
    people, names, choices, _ = case
    return people * log(names / people), people * sum(log(count) for count in choices)


def _wanted(case: Case) -> int:
    return math.ceil(sum(_bits(case)) / case[3])


MISTAKES: tuple[tuple[Callable[[Case], float], str], ...] = (
    (lambda c: math.ceil(_bits(c)[1] / c[3]), "The bits of the names are missing."),
    (
        lambda c: math.ceil((c[0] * math.log2(c[1]) + _bits(c)[1]) / c[3]),
        "A name was counted with log2(num_names) bits, as if the order of the people mattered too.",
    ),
    (
        lambda c: math.ceil((_bits(c)[0] + c[0] * math.log2(sum(c[2]))) / c[3]),
        "The choices were added before the logarithm. Each attribute has its own bits; add those.",
    ),
    (
        lambda c: math.ceil(sum(_bits(c, log=math.log)) / c[3]),
        "That is with the natural logarithm, so in nats; bits need log2.",
    ),
    (
        lambda c: math.ceil(sum(_bits(c)) * c[3]),
        "The bits were multiplied by bits_per_parameter; they have to be divided by it.",
    ),
    (
        lambda c: int(sum(_bits(c)) / c[3]),
        "It must be rounded up: with one parameter less there is no room for the last bit.",
    ),
    (
        lambda c: math.ceil((_bits(c)[0] + _bits(c)[1] / c[0]) / c[3]),
        "The values of one person were counted, but every person has values.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Five sets of people, the last one large."""
    function = names[NAME]
    calls = [Call(case) for case in CASES]
    answers = [
        number(call(function, NAME, Call((*case[:2], list(case[2]), case[3]))), made.written(NAME))
        for case, made in zip(CASES, calls, strict=True)
    ]
    wanted = [_wanted(case) for case in CASES]
    if not _same(answers, wanted):
        advice = next((s for rule, s in MISTAKES if _same(answers, [rule(case) for case in CASES])), "")
        where = next(i for i in range(len(CASES)) if not _same(answers[i : i + 1], wanted[i : i + 1]))
        gave = f"`{calls[where].written(NAME)}` gave {answers[where]:,.7g}; wanted {wanted[where]:,}."
        raise Wrong(f"{gave} {advice}".rstrip())
    return f"{len(CASES)} sets of people, up to {CASES[-1][0]:,}"


def _same(answers: Sequence[float], wanted: Sequence[float]) -> bool:
    """Equal, but for what another order of sums in a large number may move."""
    return all(f == w or math.isclose(f, w, rel_tol=1e-7) for f, w in zip(answers, wanted, strict=True))
