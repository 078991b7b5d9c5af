"""Exercise: every rank takes part in a collective, one rank prints. The guard belongs around the printing.

The commonest hang there is: `if rank == 0:` with a collective below it. Rank 0 waits for ranks that have gone
on, and the cell never ends.
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Wrong, shown
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
This hangs: `if rank == 0: dist.all_reduce(loss); say(loss / world_size)`. Write `tell_mean(loss, say)` anew:
rank 0 alone calls `say` with the mean of all ranks' losses, once, and every rank keeps its own `loss` as it
was."""

STUB = '''\
import torch
import torch.distributed as dist


def tell_mean(loss: torch.Tensor, say) -> None:
    """Rank 0 says the mean loss of all ranks; nobody's own loss changes."""
    total = ...
    ...
    if dist.get_rank() == 0:
        say(...)
'''

SOLUTION = '''\
import torch
import torch.distributed as dist


def tell_mean(loss: torch.Tensor, say) -> None:
    """Rank 0 says the mean loss of all ranks; nobody's own loss changes."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        say(total / dist.get_world_size())
'''

GUARDED = SOLUTION.replace(
    "    dist.all_reduce(total)\n    if dist.get_rank() == 0:\n",
    "    if dist.get_rank() == 0:\n        dist.all_reduce(total)\n",
)

CHECK_PROGRAM = """\
from workshop.lessons.on_ranks.fix_the_guard import check_fix_the_guard
check_fix_the_guard(tell_mean)
"""


def _check(reports: list[dict[str, Any]]) -> str:
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
        told = f"ranks {', '.join(map(str, speakers))}" if speakers else "nobody"
        raise Wrong(f"{told} called `say`; wanted rank 0, once. The guard belongs around the saying.")
    _right_mean(reports[0])
    changed = [rank for rank, report in enumerate(reports) if not report["kept"]]
    if changed:
        raise Wrong(
            f"`loss` on rank {changed[0]} is another number now: all_reduce writes into the tensor it is "
            "given. Give it a copy."
        )
    return f"{len(reports)} ranks took part, rank 0 spoke: {shown(reports[0]['mean'])}."


def _right_mean(report: dict[str, Any]) -> None:
    said, mean, count = report["said"][0], report["mean"], 3
    if abs(said - mean) < 1e-4 * mean:
        return
    if abs(said - count * mean) < 1e-3 * mean:
        raise Wrong(f"Rank 0 said {shown(said)}; wanted {shown(mean)}. That is the sum: divide by the ranks.")
    raise Wrong(f"Rank 0 said {shown(said)}; wanted {shown(mean)}, the mean over all ranks.")


FIX_THE_GUARD = Exercise(
    name="fix_the_guard",
    day=6,
    question=QUESTION,
    stub=STUB,
    hints=(
        "Which lines must every rank run, and which only rank 0?",
        "`dist.all_reduce(total)` stands before the `if`, and `total` is a copy: `loss.detach().clone()`.",
        "Below the guard only `say(total / dist.get_world_size())` is left.",
    ),
    solution=SOLUTION,
    defines=("tell_mean",),
    check=_check,
    shows="Collectives outside the guard, words inside it.",
    wrong_answers=(
        WrongAnswer("a guarded collective", GUARDED, "the others never reach"),
        WrongAnswer(
            "everybody speaks",
            SOLUTION.replace("    if dist.get_rank() == 0:\n        say", "    say"),
            "The guard belongs around the saying",
        ),
        WrongAnswer("the sum", SOLUTION.replace(" / dist.get_world_size()", ""), "That is the sum"),
        WrongAnswer(
            "its own loss",
            SOLUTION.replace("    dist.all_reduce(total)\n", "").replace(" / dist.get_world_size()", ""),
            "the mean over all ranks",
        ),
        WrongAnswer(
            "in place", SOLUTION.replace("total = loss.detach().clone()", "total = loss"), "Give it a copy"
        ),
    ),
    ranks=3,
    check_program=CHECK_PROGRAM,
)
