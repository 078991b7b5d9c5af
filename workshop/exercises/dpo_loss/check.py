"""Exercise: the loss of DPO, held against equation 7 of Rafailov et al. 2023 (arXiv 2305.18290)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, number

NAME = "dpo_loss"
Rule = Callable[..., Any]


def _loss(margin: Any) -> Any:
    import torch.nn.functional as F

    return -F.logsigmoid(margin)


def _wanted(c: Any, r: Any, rc: Any, rr: Any, beta: float) -> Any:
    return _loss(beta * (c - rc - r + rr)).mean()


MISTAKES: tuple[tuple[Rule, str], ...] = (
    (
        lambda c, r, rc, rr, b: _loss(b * (r - rr - c + rc)).mean(),
        "That is the loss for the rejected answer to win.",
    ),
    (
        lambda c, r, *refs_and_beta: _loss(refs_and_beta[-1] * (c - r)).mean(),
        "The reference is missing: a reward is model minus reference.",
    ),
    (
        lambda c, r, rc, rr, b: _loss(b * (c - r + rc - rr)).mean(),
        "The reference's numbers are added. Subtract them: a reward is model minus reference.",
    ),
    (
        lambda c, r, rc, rr, b: b * _loss(c - rc - r + rr).mean(),
        "beta is outside the logarithm. It belongs inside, because it multiplies the rewards.",
    ),
    (lambda c, r, rc, rr, b: _loss(b * (c - rc - r + rr)).sum(), "A sum over the pairs; wanted the mean."),
    (
        lambda c, r, rc, rr, b: 1 - (b * (c - rc - r + rr)).sigmoid().mean(),
        "That is the rejected answer's probability; wanted minus the logarithm of the chosen one's.",
    ),
    (
        lambda c, r, rc, rr, b: _loss(b * (c - rc - r + rr).mean()),
        "The mean was taken over the margins. Each pair has a loss: take the mean over these.",
    ),
)  # fmt: skip


def _cases() -> list[tuple[Any, ...]]:
    import torch

    drawn = torch.Generator().manual_seed(0)
    return [
        (*(-10 * torch.rand(4, pairs, generator=drawn)), beta)
        for pairs, beta in ((5, 0.1), (7, 0.5), (1, 2.0), (4, 1.0))
    ]


def _answer(function: Any, case: tuple[Any, ...]) -> float:
    value = call(function, NAME, Call((*(one.clone() for one in case[:4]), case[4])))
    if hasattr(value, "detach") and value.numel() == 1:
        value = value.item()
    return number(value, f"dpo_loss(..., {case[4]})")


def check(names: dict[str, Any]) -> str:
    """Random pairs, then pairs on which the model is far off, then the gradient."""
    function, cases = names[NAME], _cases()
    answers = [_answer(function, case) for case in cases]
    if not _same(answers, [float(_wanted(*case)) for case in cases]):
        advice = next(
            (s for rule, s in MISTAKES if _same(answers, [float(rule(*case)) for case in cases])), ""
        )
        where = next(
            i for i, case in enumerate(cases) if not _same(answers[i : i + 1], [float(_wanted(*case))])
        )
        wanted = float(_wanted(*cases[where]))
        pairs, beta = len(cases[where][0]), cases[where][4]
        raise Wrong(
            f"{pairs} pairs, beta {beta}: it gave {answers[where]:.5g}; "
            f"wanted {wanted:.5g}. {advice}".rstrip()
        )
    _far_off(function)
    _gradient(function, cases[0])
    return f"{sum(len(case[0]) for case in cases)} pairs, and pairs that are far off"


def _same(answers: list[float], wanted: list[float]) -> bool:
    return all(math.isclose(f, w, rel_tol=1e-3, abs_tol=1e-5) for f, w in zip(answers, wanted, strict=True))


def _far_off(function: Any) -> None:
    """Wrong, where a margin of hundreds gives infinity."""
    import torch

    zeros = torch.zeros(2)
    for gap in (-300.0, 300.0):
        case = (torch.full((2,), gap), zeros, zeros, zeros, 1.0)
        value, wanted = _answer(function, case), max(0.0, -gap)
        if not math.isclose(value, wanted, rel_tol=1e-3, abs_tol=1e-5):
            raise Wrong(
                f"A margin of {gap:g} gave {value:g}; wanted {wanted:g}, which is finite. In fp32 "
                "sigmoid(-300) is 0, and 0 has no logarithm: `logsigmoid` takes both at once."
            )


def _gradient(function: Any, case: tuple[Any, ...]) -> None:
    """Wrong, unless gradients come back to both answers of the model."""
    import torch

    pair = [one.clone().requires_grad_() for one in case[:2]]
    loss = call(function, NAME, Call((*pair, *(one.clone() for one in case[2:4]), case[4])))
    if not (isinstance(loss, torch.Tensor) and loss.requires_grad):
        raise Wrong("No gradient comes back from the loss, so no model can learn from it.")
    answer = torch.autograd.grad(loss, pair, allow_unused=True)
    twins = [one.clone().requires_grad_() for one in case[:2]]
    wanted = torch.autograd.grad(_wanted(*twins, *case[2:]), twins)
    for name, mine, right in zip(("chosen", "rejected"), answer, wanted, strict=True):
        if mine is None or not torch.allclose(mine, right, rtol=1e-3, atol=1e-5):
            raise Wrong(f"The loss is right, but its gradient by `{name}` is not.")
