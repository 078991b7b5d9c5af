"""Exercise: the loss of a student that learns from a teacher's probabilities.

Hinton et al. 2015, arXiv 1503.02531, section 2: both softmaxes at temperature T, the student's distance from
the teacher's distribution, and T^2 so that the gradient keeps its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, number, shown

NAME = "soft_loss"
Loss = Callable[[Any, Any, float], float]


def _log_softmax(logits: Any) -> Any:
    import torch

    return torch.log_softmax(logits, -1)


def _divergence(first: Any, second: Any) -> Any:
    """KL of two tensors of log-probabilities, for each position."""
    return (first.exp() * (first - second)).sum(-1)


def _loss(student: Any, teacher: Any, t: float) -> float:
    return float(t**2 * _divergence(_log_softmax(teacher / t), _log_softmax(student / t)).mean())


def _backwards(student: Any, teacher: Any, t: float) -> float:
    return _loss(teacher, student, t)


def _without_square(student: Any, teacher: Any, t: float) -> float:
    return _loss(student, teacher, t) / t**2


def _once(student: Any, teacher: Any, t: float) -> float:
    return _loss(student, teacher, t) / t


def _hard_student(student: Any, teacher: Any, t: float) -> float:
    return float(t**2 * _divergence(_log_softmax(teacher / t), _log_softmax(student)).mean())


def _entropy_left(student: Any, teacher: Any, t: float) -> float:
    log_p, log_q = _log_softmax(teacher / t), _log_softmax(student / t)
    return float(-(t**2) * (log_p.exp() * log_q).sum(-1).mean())


def _summed(student: Any, teacher: Any, t: float) -> float:
    return _loss(student, teacher, t) * len(student)


def _over_words(student: Any, teacher: Any, t: float) -> float:
    return _loss(student, teacher, t) / student.shape[-1]


def _multiplied(student: Any, teacher: Any, t: float) -> float:
    return float(t**2 * _divergence(_log_softmax(teacher * t), _log_softmax(student * t)).mean())


MISTAKES: tuple[tuple[Loss, str], ...] = (
    (_without_square, "The T^2 is missing: the gradient shrinks with the square of the temperature."),
    (_once, "That is T, not its square."),
    (_backwards, "That is KL(student || teacher), the reverse one: p, the teacher's, must weigh the sum."),
    (_hard_student, "The student's logits are not divided by T: both must be equally soft."),
    (_multiplied, "Logits are divided by the temperature. Multiplied, they get harder, not softer."),
    (_entropy_left, "That is the cross-entropy, without p log p: a perfect student would still have a loss."),
    (_summed, "That is the sum over positions; wanted is the mean."),
    (
        _over_words,
        "That takes the mean over words too (`reduction='mean'`): sum over words, mean over positions.",
    ),
)


def _cases() -> list[tuple[Any, Any, float]]:
    import torch

    drawn = torch.Generator().manual_seed(0)

    def logits(shape: tuple[int, int]) -> Any:
        return torch.randn(shape, generator=drawn, dtype=torch.float64)

    shapes = (((3, 5), 2.0), ((4, 7), 1.0), ((2, 6), 4.0), ((5, 4), 0.5))
    return [(logits(shape), 2 * logits(shape), t) for shape, t in shapes]


def _given(function: Any, student: Any, teacher: Any, t: float) -> float:
    """What the learner's function gives for a student that is trained: a number with a gradient."""
    import torch

    student = student.clone().requires_grad_()
    with torch.enable_grad():
        value = call(function, NAME, Call((student, teacher.clone(), t)))
    written = f"soft_loss(..., ..., {t})"
    if not isinstance(value, torch.Tensor):
        number(value, written)
        raise Wrong(
            f"`{written}` gave {shown(value)}, a plain number. A student learns from a tensor's gradient."
        )
    if value.ndim:
        raise Wrong(f"`{written}` gave a tensor of shape {tuple(value.shape)}; wanted one number, the mean.")
    if not value.requires_grad:
        raise Wrong(f"`{written}` has no gradient: leave out `.item()`, `.detach()` and `torch.no_grad()`.")
    return float(value.detach())


def _check_gradient(function: Any, student: Any, teacher: Any, t: float) -> None:
    """A number may be right and still teach nothing, where a part of it was detached."""
    import torch

    wanted = t * ((student / t).softmax(-1) - (teacher / t).softmax(-1)) / len(student)
    student = student.clone().requires_grad_()
    with torch.enable_grad():
        (answer,) = torch.autograd.grad(function(student, teacher.clone(), t), student)
    if not torch.allclose(answer, wanted, rtol=1e-4, atol=1e-6):
        raise Wrong("The loss is right, but not its gradient: the student is detached somewhere.")


def check(names: dict[str, Any]) -> str:
    """Four random cases, the gradient of one, and a perfect student."""
    cases = _cases()
    answers = [_given(names[NAME], *case) for case in cases]
    wanted = [_loss(*case) for case in cases]
    if not _same(answers, wanted):
        advice = next((s for formula, s in MISTAKES if _same(answers, [formula(*c) for c in cases])), "")
        where = next(i for i in range(len(cases)) if not _same(answers[i : i + 1], wanted[i : i + 1]))
        advice = f"gave {answers[where]:.5f}; wanted {wanted[where]:.5f}. {advice}".rstrip()
        raise Wrong(f"At temperature {cases[where][2]:g} it {advice}")
    _check_gradient(names[NAME], *cases[0])
    logits = 1000 * cases[0][1]
    perfect = _given(names[NAME], logits, logits, 1.0)
    if not abs(perfect) < 1e-9:
        raise Wrong(
            f"A student that says just what the teacher says has a loss of {perfect}; wanted 0. With logits "
            "in the thousands some probability is 0: take `log_softmax`, not the logarithm of it."
        )
    return "A perfect student has a loss of 0, and the gradient about keeps its size at a high temperature."


def _same(answer: list[float], wanted: list[float]) -> bool:
    pairs = zip(answer, wanted, strict=True)  # an answer may compute in fp32
    return all(math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6) for one, other in pairs)
