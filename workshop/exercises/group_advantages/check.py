"""Exercise: how much better an answer is than the others to the same question.

Shao et al. 2024, *DeepSeekMath*, arXiv 2402.03300, section 4.1.2: rewards of a group, normalized by its mean
and standard deviation. Whether that divides by the number of answers or by one less is left open here too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

NAME = "group_advantages"
Formula = Callable[[Any], Any]


def _off(rewards: Any) -> Any:
    return rewards - rewards.mean(1, keepdim=True)


def _wanted(rewards: Any, less: int) -> Any:
    return (_off(rewards) / rewards.std(1, keepdim=True, correction=less)).nan_to_num(0.0)


MISTAKES: tuple[tuple[Formula, str], ...] = (
    (
        lambda r: (r - r.mean()) / r.std(1, keepdim=True),
        "That subtracts the mean of all answers. An answer is compared with those to its own question.",
    ),
    (_off, "The mean is subtracted, but the rest is not divided by the standard deviation."),
    (
        lambda r: _off(r) / r.mean(1, keepdim=True),
        "It is divided by the mean; wanted: by the standard deviation.",
    ),
    (lambda r: _off(r) / r.std(), "That divides by the deviation of all answers, not of the question's own."),
    (
        lambda r: (r - r.mean(0, keepdim=True)) / r.std(0, keepdim=True),
        "Mean and deviation were taken along the questions, dim 0; the answers to a question are dim 1.",
    ),
    (
        lambda r: _off(r) / r.var(1, keepdim=True),
        "It is divided by the variance; wanted: by its root.",
    ),
)


LEFT_BY_ROUNDING = 0.2
"""The most that may be left of a row of equal rewards. A mean that is off by 6e-8 makes 0.06 if 1e-6 is added
to the deviation, and 1 if nothing is added."""


def _cases() -> list[Any]:
    import torch

    drawn = torch.Generator().manual_seed(0)
    return [10 * torch.rand(shape, generator=drawn) for shape in ((3, 4), (5, 8), (4, 4))]


def _same(answer: Any, wanted: Any) -> bool:
    return bool(((answer - wanted).abs() < 1e-3 * (1 + wanted.abs())).all())


def _answer(function: Any, rewards: Any) -> Any:
    import torch

    value = call(function, NAME, Call((rewards.clone(),)))
    if not isinstance(value, torch.Tensor):
        raise Wrong(f"`group_advantages(rewards)` gave {shown(value)}; wanted a tensor.")
    if value.shape != rewards.shape:
        raise Wrong(
            f"It gave shape {tuple(value.shape)} for rewards of {tuple(rewards.shape)}; wanted the same."
        )
    return value.float()


def check(names: dict[str, Any]) -> str:
    """Random rewards, then questions on which all answers are worth the same."""
    import torch

    function, cases = names[NAME], _cases()
    answers = [_answer(function, case) for case in cases]
    if not any(all(map(_same, answers, [_wanted(c, less) for c in cases])) for less in (0, 1)):
        advice = next((s for rule, s in MISTAKES if all(map(_same, answers, map(rule, cases)))), "")
        first = [round(float(x), 3) for x in answers[0][0]]
        wanted = [round(float(x), 3) for x in _wanted(cases[0], 1)[0]]
        raise Wrong(f"A row of rewards gave {first}; wanted {wanted}. {advice}".rstrip())
    alike = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]])
    value = _answer(function, alike)
    if not bool(value.isfinite().all()):
        raise Wrong("A row of equal rewards gave values that are not a number (0 / 0). Make it all zeros.")
    if not bool((value[:2].abs() < 1e-3).all()):
        raise Wrong(f"A row of equal rewards gave {value[0].tolist()}; wanted zeros.")
    for reward, number, rows in itertools.product((0.1, 0.3, 0.7, 0.9), (7, 8, 13), (1, 2)):
        value = _answer(function, torch.full((rows, number), reward))
        if not bool((value.abs() < LEFT_BY_ROUNDING).all()):
            raise Wrong(
                f"A row of {number} rewards of {reward} gave {shown(value[0, 0].item())}; wanted zeros. Its "
                "mean is rounded, so its deviation is tiny but not 0: add a small number to it, such as 1e-6."
            )
    return f"{sum(len(case) for case in cases)} questions, each measured by its own answers"
