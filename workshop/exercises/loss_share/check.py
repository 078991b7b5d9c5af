"""Exercise: a micro-batch's share in the mean over all answers of all ranks.

A mean of means weighs an answer token by how few others its micro-batch or its rank happened to have.
What is wanted is one sum divided by one count, and since DDP divides by the number of ranks, that is
multiplied away.
"""

from __future__ import annotations

import math
from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits, shown

SAME_CALLS = "All ranks must make the same calls in the same order."
ANSWERS = ((1, 3, 2), (6, 4, 8))  # as in on_ranks, which needs torch
SUMS = ((2.0, 5.0, 1.0), (9.0, 4.0, 16.0))
LENGTH = 9
RANKS = len(ANSWERS)
ALL = sum(map(sum, ANSWERS))

MISTAKES = (
    (
        [RANKS / ALL * RANKS for _ in ANSWERS],
        "It is too large by the number of ranks: the count is the sum over all ranks, not their mean.",
    ),
    ([1 / ALL for _ in ANSWERS], "DDP divides by the number of ranks once more: multiply by it."),
    (
        [1 / sum(mine) for mine in ANSWERS],
        "That is the mean over the answers of this rank alone: where they are few, each has a larger weight.",
    ),
    (
        [RANKS / (RANKS * LENGTH * len(ANSWERS[0])) for _ in ANSWERS],
        "It also counts labels of -100: they have no loss.",
    ),
    (
        [RANKS / sum(mine[0] for mine in ANSWERS) for _ in ANSWERS],
        "It counts the first micro-batch only: a step has several.",
    ),
)


def check(reports: list[dict[str, Any]]) -> str:
    """Nobody waits in vain, each share is right, and it has a gradient."""
    nobody_waits([report["waited_at"] for report in reports], SAME_CALLS)
    for rank, report in enumerate(reports):
        if words := [share for share in report["shares"] if isinstance(share, str)]:
            raise Wrong(f"On rank {rank} it gave a {words[0]}; wanted a tensor with one number.")
    for rank, report in enumerate(reports):
        wanted = [RANKS * one / ALL for one in SUMS[rank]]
        if not _near(report["shares"], wanted):
            raise Wrong(_difference(reports, rank, wanted))
        if report["gradient"] is None or not _near([report["gradient"]], [sum(wanted)]):
            raise Wrong("The number is right and has no gradient: return `loss_sum` times a number.")
    return f"{ALL} answer tokens in {sum(map(len, ANSWERS))} micro-batches weigh the same."


def _difference(reports: list[dict[str, Any]], rank: int, wanted: list[float]) -> str:
    advice = ""
    for factors, sentence in MISTAKES:
        if all(
            _near(report["shares"], [factor * one for one in sums])
            for report, factor, sums in zip(reports, factors, SUMS, strict=True)
        ):
            advice = sentence
            break
    counts = " and ".join(str(sum(mine)) for mine in ANSWERS)
    return (
        f"Ranks 0 and 1 have {counts} answer tokens. On rank {rank} a micro-batch with the sum "
        f"{shown(SUMS[rank][0])} has the share {shown(reports[rank]['shares'][0])}; wanted "
        f"{shown(wanted[0])}. {advice}".rstrip()
    )


def _near(answers: list[float], wanted: list[float]) -> bool:
    return len(answers) == len(wanted) and all(
        math.isclose(f, w, rel_tol=1e-5) for f, w in zip(answers, wanted, strict=True)
    )
