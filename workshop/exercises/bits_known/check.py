"""Exercise: bits that a model knows, by the definition of Morris et al. 2025 (arXiv 2505.24832).

In their section 2.3 a sample costs the shorter of two codes, with the model and without it, so that no
sample counts less than 0. Section 3.2 has the entropy of uniform tokens, N S log2 V.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, number

NAME = "bits_known"
LN2 = math.log(2)
Rule = Callable[[Any, int], float]


def _saved(losses: Any, num_words: int) -> Any:
    return math.log(num_words) - losses


def _wanted(losses: Any, num_words: int) -> float:
    return float(_saved(losses, num_words).sum(1).clamp(min=0).sum()) / LN2


MISTAKES: tuple[tuple[Rule, str], ...] = (
    (lambda x, n: _wanted(x, n) * LN2, "That is the right amount, but in nats: divide by math.log(2)."),
    (
        lambda x, n: float((math.log2(n) - x).sum(1).clamp(min=0).sum()),
        "log2(num_words) is in bits and the loss in nats: that subtracts two different units.",
    ),
    (
        lambda x, n: float(_saved(x, n).sum()) / LN2,
        "A fact whose total is negative counts as 0. Here it takes away from what is known of others.",
    ),
    (
        lambda x, n: float(_saved(x, n).clamp(min=0).sum()) / LN2,
        "Negative savings were replaced by 0 for each token. Add up the tokens of a fact first.",
    ),
    (
        lambda x, n: max(0.0, float(_saved(x, n).sum()) / LN2),
        "Negative savings were replaced by 0 for all facts together. Do it for each fact.",
    ),
    (
        lambda x, n: _wanted(x, n) / len(x),
        "That is the mean over the facts; wanted the sum.",
    ),
    (
        lambda x, _: float(x.sum()) / LN2,
        "That is the loss in bits, so what the model does not know.",
    ),
)  # fmt: skip


def _cases() -> list[tuple[Any, int]]:
    """Facts that are known well, half, or worse than by blind guessing; then all and nothing."""
    import torch

    drawn = torch.Generator().manual_seed(0)
    mixed = 6 * torch.rand(5, 3, generator=drawn)
    worse = torch.tensor([[0.1, 9.0, 0.2], [12.0, 0.1, 8.0], [0.5, 0.5, 0.5]])
    confident = torch.full((2, 4), 11.0)
    known, blank = torch.zeros(4, 7), torch.full((3, 2), math.log(256))
    return [(mixed, 64), (worse, 64), (confident, 16), (known, 64), (blank, 256), (mixed[:1], 4096)]


def _answer(function: Any, case: tuple[Any, int]) -> float:
    losses, num_words = case
    value = call(function, NAME, Call((losses.clone(), num_words)))
    if hasattr(value, "detach") and value.numel() == 1:
        value = value.item()
    return number(value, f"bits_known(losses, {num_words})")


def _same(answers: list[float], wanted: list[float]) -> bool:
    return all(math.isclose(f, w, rel_tol=1e-3, abs_tol=1e-3) for f, w in zip(answers, wanted, strict=True))


def check(names: dict[str, Any]) -> str:
    """Six sets of losses, among them all known, nothing known, and facts that the model gets wrong."""
    function, cases = names[NAME], _cases()
    answers = [_answer(function, case) for case in cases]
    wanted = [_wanted(*case) for case in cases]
    if not _same(answers, wanted):
        advice = next((s for rule, s in MISTAKES if _same(answers, [rule(*case) for case in cases])), "")
        where = next(i for i in range(len(cases)) if not _same(answers[i : i + 1], wanted[i : i + 1]))
        losses, num_words = cases[where]
        rows = [[round(x, 2) for x in row] for row in losses.tolist()]
        raise Wrong(
            f"losses {rows}, {num_words} words: it gave {answers[where]:.5g}; wanted {wanted[where]:.5g}. "
            f"{advice}".rstrip()
        )
    return f"{len(cases)} sets of facts, from unknown to known by heart"
