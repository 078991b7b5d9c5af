"""Exercise: the gradient of a shard, when all ranks computed with the gathered whole.

A gather copies a shard to N ranks. Backward, what they find for it is added up, and each rank needs the sum
for its own shard alone: a reduce-scatter (Zhao et al. 2023, arXiv 2304.11277, section 3.1). Divided by N it
is the gradient of the mean loss over the joined batch.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits, shown

SAME_CALLS = "All ranks must make the same calls in the same order."
TOLERANCE = 1e-5


def check(reports: list[dict[str, Any]]) -> str:
    """In turn: nobody waits in vain, numbers one can read, a transposed gradient, and the bytes sent."""
    nobody_waits([report["waited_at"] for report in reports], SAME_CALLS)
    for case in ("readable", "transposed"):
        for rank, report in enumerate(reports):
            _compare(case, rank, report[case], reports)
    sent, needed = reports[0]["sent"], reports[0]["needed"]
    if sent > 1.01 * needed:
        raise Wrong(
            f"The numbers are right. But a rank sends {sent:,.0f} bytes, {sent / needed:.0f} times as many "
            "as needed: a rank needs only its own rows of the sum."
        )
    return f"Each of {len(reports)} ranks has its own rows of the mean, and sent {sent:,.0f} bytes for them."


def _compare(case: str, rank: int, mine: dict[str, Any], reports: list[dict[str, Any]]) -> None:
    answer, wanted = mine["found"], mine["wanted"]
    if answer is None or mine["shape"] != mine["wanted_shape"]:
        what = "no tensor" if answer is None else f"shape {tuple(mine['shape'])}"
        raise Wrong(f"On rank {rank} it gave {what}; wanted shape {tuple(mine['wanted_shape'])}.")
    if _same(answer, wanted):
        return
    advice = f"A {case} gradient: on rank {rank} it gave {shown(answer)}; wanted {shown(wanted)}. "
    why = _why(answer, mine, reports[0][case]["wanted"], len(reports))
    if not why and case == "transposed":
        why = "Its rows do not lie one after the other in memory: make it contiguous before you send parts."
    raise Wrong((advice + why).rstrip())


def _why(answer: list[float], mine: dict[str, Any], of_rank_0: list[float], ranks: int) -> str:
    """What the numbers are instead."""
    if _same(answer, [ranks * value for value in mine["wanted"]]):
        return "That is the sum: the loss is a mean over ranks, so divide by their number."
    if _same(answer, [ranks / 2 * value for value in mine["wanted"]]):
        return f"That is half of the sum, but there are {ranks} ranks."
    if _same(answer, mine["alone"]):
        return "That is what this rank alone computed. The other ranks computed with your shard as well."
    if _same(answer, of_rank_0):
        return "That is rank 0's part. Rank 1 has the second part, and so on."
    return ""


def _same(answer: list[float], wanted: list[float]) -> bool:
    largest = max(abs(value) for value in wanted)
    return all(abs(one - two) <= TOLERANCE * largest for one, two in zip(answer, wanted, strict=True))
