"""Exercise: every rank takes part in a collective, one rank prints. The guard belongs around the printing.

The commonest hang there is: `if rank == 0:` with a collective below it. Rank 0 waits for ranks that have gone
on, and the cell never ends.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, shown


def check(reports: list[dict[str, Any]]) -> str:
    """In turn: nobody waits, rank 0 alone speaks, what it says is the mean, and no loss was changed."""
    waiting = {rank: report["waited_at"] for rank, report in enumerate(reports) if report["waited_at"]}
    if waiting:
        rank, line = next(iter(waiting.items()))
        raise Wrong(
            f"Rank {rank} waits on line {line} for ranks that have left the function: a collective below "
            "`if rank == 0:` is one that the others never reach."
        )
    speakers = [rank for rank, report in enumerate(reports) if report["said"]]
    if speakers != [0] or len(reports[0]["said"]) != 1:
        who = f"ranks {', '.join(map(str, speakers))}" if speakers else "nobody"
        raise Wrong(f"{who} called `say`; wanted rank 0, once. The guard belongs around the call of `say`.")
    _right_mean(reports[0])
    changed = [rank for rank, report in enumerate(reports) if not report["kept"]]
    if changed:
        raise Wrong(
            f"`loss` on rank {changed[0]} has changed: all_reduce writes into the tensor that it is "
            "given. Give it a copy."
        )
    return f"{len(reports)} ranks took part, rank 0 spoke: {shown(reports[0]['mean'])}."


def _right_mean(report: dict[str, Any]) -> None:
    spoken, mean, count = report["said"][0], report["mean"], 3
    if abs(spoken - mean) < 1e-4 * mean:
        return
    if abs(spoken - count * mean) < 1e-3 * mean:
        raise Wrong(
            f"Rank 0 said {shown(spoken)}; wanted {shown(mean)}. That is the sum: divide by the ranks."
        )
    raise Wrong(f"Rank 0 said {shown(spoken)}; wanted {shown(mean)}, the mean over all ranks.")
