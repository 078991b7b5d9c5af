"""Exercise: ZeRO's first stage. Every rank reduces, updates and keeps the moments of one part only.

A reduce_scatter and an all_gather are the two halves of an all_reduce (lesson 21). Between them each rank
holds the mean gradient of its own part; that is where the optimizer steps (Rajbhandari et al. 2020, arXiv
1910.02054, section 5.1 and, for the traffic, 7.2).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits, shown


def check(reports: list[dict[str, Any]]) -> str:
    """In turn: nobody waits, the optimizer saw one part, the weights are right, and right everywhere."""
    nobody_waits([report["waited_at"] for report in reports], "All ranks must make the same calls.")
    for rank, report in enumerate(reports):
        _one_part(rank, report)
        _right_weights(rank, report)
    count = len(reports)
    return f"On {count} ranks the step is that of one process, and each rank updated one {_nth(count)} of it."


def _one_part(rank: int, report: dict[str, Any]) -> None:
    part, seen = report["part_length"], report["updated"]
    if seen != [part]:
        what = (
            f"`update` was called {len(seen)} times" if len(seen) != 1 else f"`update` got {seen[0]:,} values"
        )
        raise Wrong(
            f"On rank {rank} {what}; wanted one call with the {part:,} values of this rank's part. The "
            "optimizer keeps moments for all values that it is given."
        )


def _right_weights(rank: int, report: dict[str, Any]) -> None:
    held, wanted, other = report["held"], report["wanted"], report["summed"]
    if held == wanted:
        return
    own = slice(rank * report["part_length"], (rank + 1) * report["part_length"])
    difference = f"The weights on rank {rank} are now {shown(held)}; wanted {shown(wanted)}. "
    if held == other:
        raise Wrong(
            difference + "That is a step with the sum of the gradients: divide by the number of ranks."
        )
    if held[own] == wanted[own]:
        raise Wrong(
            difference
            + "This rank's own part is right, but the parts of the other ranks are missing (all_gather)."
        )
    raise Wrong(difference + "This rank's own part is wrong: its gradient must be the mean over all ranks.")


def _nth(count: int) -> str:
    return {2: "half", 4: "quarter"}.get(count, f"{count}th")
