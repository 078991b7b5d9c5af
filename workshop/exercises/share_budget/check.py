"""Exercise: which tokens are computed in a step, when prompts are long and the budget is not.

Agrawal et al. 2024, *Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve*, arXiv
2403.02310, section 4.2: decodes first, then the rest of the budget for chunks of prompts.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

NAME = "share_budget"
CASES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1, 1, 1, 1), 4),
    ((3, 5, 1), 16),
    ((40, 1, 30), 16),
    ((10, 1, 30, 1), 16),
    ((20, 20), 16),
    ((1, 9, 1), 2),
)


def _wanted(wants: tuple[int, ...], budget: int) -> list[int]:
    left, shares = budget - wants.count(1), []
    for want in wants:
        share = 1 if want == 1 else min(want, left)
        left -= share if want > 1 else 0
        shares.append(share)
    return shares


def _sentence(wants: tuple[int, ...], budget: int, answer: list[int]) -> str:
    """What is wrong with these shares."""
    if sum(answer) > budget:
        return f"Together these are {sum(answer)}, more than the budget."
    if any(want == 1 and not share for want, share in zip(wants, answer, strict=True)):
        return "A request that wants a single token waits behind a prompt: it must get its token first."
    if any(share > want for want, share in zip(wants, answer, strict=True)):
        return "A request got more than it wants."
    first = next((i for i, want in enumerate(wants) if want > 1), 0)
    if not answer[first] and _wanted(wants, budget)[first]:
        return "A prompt that does not fit as a whole may be cut: it gets what is left."
    return "The rest goes to the prompts in order: the second gets tokens only after the first has all."


def check(names: dict[str, Any]) -> str:
    """Steps with and without prompts, with room and without."""
    for wants, budget in CASES:
        made = Call((list(wants), budget))
        answer = call(names[NAME], NAME, made)
        if not isinstance(answer, (list, tuple)) or len(answer) != len(wants):
            raise Wrong(
                f"`{made.written(NAME)}` gave {shown(answer)}; wanted a list of {len(wants)} numbers."
            )
        if list(answer) != _wanted(wants, budget):
            advice = _sentence(wants, budget, list(answer))
            raise Wrong(
                f"`{made.written(NAME)}` gave {shown(answer)}; wanted {_wanted(wants, budget)}. {advice}"
            )
    return "Each step computes as many tokens as the budget allows, and nobody who wants one waits."
