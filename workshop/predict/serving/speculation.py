"""What a draft model gains: tokens a pass, and how much faster.

A draft model writes g tokens, one after the other; the large model reads them all in one pass and keeps them
as long as they agree with what it would have written, plus one of its own. If each is kept with probability
a, independently, a round yields on average

    tokens(a, g) = (1 - a^(g+1)) / (1 - a)

and takes g draft steps of c each (in steps of the large model) and one pass:

    speed-up(a, g, c) = (1 - a^(g+1)) / ((1 - a) (g c + 1))

(Leviathan, Kalman and Matias 2023, arXiv 2211.17192, theorem 3.8 and corollary 3.9.) It supposes that a pass
over g + 1 tokens takes as long as one over a single token: true while a pass waits for memory, false in a
large batch, where `verify` is more than 1.
"""

from __future__ import annotations

from workshop.facts.checks import check_not_negative


def tokens_per_round(acceptance: float, drafted: int) -> float:
    """Tokens that a round of `drafted` tokens yields on average, the large model's own included."""
    check_not_negative("drafted", drafted)
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance must lie between 0 and 1, not {acceptance!r}")
    if acceptance == 1:
        return drafted + 1.0
    return (1 - acceptance ** (drafted + 1)) / (1 - acceptance)


def speculation_speedup(acceptance: float, drafted: int, cost: float, verify: float = 1.0) -> float:
    """How many times faster than without a draft; below 1 it loses.

    cost: a step of the draft model in steps of the large one. verify: a pass over `drafted` + 1 tokens in
    steps of the large model.
    """
    for name, value in (("cost", cost), ("verify", verify)):
        if not value >= 0:
            raise ValueError(f"{name} must not be negative: {value!r}")
    if drafted * cost + verify == 0:
        raise ValueError("cost and verify are both 0: a round would take no time")
    return tokens_per_round(acceptance, drafted) / (drafted * cost + verify)


def best_draft(acceptance: float, cost: float, most: int = 16) -> int:
    """How many tokens to draft, 0 to `most`, for the largest speed-up; 0 where speculation only loses."""
    return max(range(most + 1), key=lambda drafted: speculation_speedup(acceptance, drafted, cost))
