"""Exercise: ZeRO's first stage. Every rank reduces, updates and keeps the moments of one part only.

A reduce_scatter and an all_gather are the two halves of an all_reduce (lesson 21). Between them each rank
holds the mean gradient of its own part; that is where the optimizer steps (Rajbhandari et al. 2020, arXiv
1910.02054, section 5.1 and, for the traffic, 7.2).
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Wrong, nobody_waits, shown
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
All ranks hold the same flat `weights`, and each the `gradient` of its own batch. Write
`zero_step(weights, gradient, update)`: give this rank the mean gradient of its own part
(`dist.reduce_scatter`), call `update(part, gradient_of_part)` once, which changes the part in place, and make
the weights whole again on every rank (`dist.all_gather`). Both lengths divide by the number of ranks."""

STUB = '''\
import torch
import torch.distributed as dist


def zero_step(weights: torch.Tensor, gradient: torch.Tensor, update) -> None:
    """One step of ZeRO 1 on flat tensors, in place; update(part, gradient_of_part) is the optimizer."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(weights.chunk(world_size))  # views: what is written to parts[rank] is written to weights
    mine = torch.empty_like(parts[rank])  # for the mean gradient of this rank's part
    ...
'''

SOLUTION = '''\
import torch
import torch.distributed as dist


def zero_step(weights: torch.Tensor, gradient: torch.Tensor, update) -> None:
    """One step of ZeRO 1 on flat tensors, in place; update(part, gradient_of_part) is the optimizer."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(weights.chunk(world_size))  # views: what is written to parts[rank] is written to weights
    mine = torch.empty_like(parts[rank])  # for the mean gradient of this rank's part
    dist.reduce_scatter(mine, list(gradient.chunk(world_size)))
    mine /= world_size
    update(parts[rank], mine)
    dist.all_gather(parts, parts[rank].clone())
'''

NO_GATHER = SOLUTION.replace("    dist.all_gather(parts, parts[rank].clone())\n", "")
SUM = SOLUTION.replace("    mine /= world_size\n", "")
OWN_GRADIENT = SOLUTION.replace(
    "dist.reduce_scatter(mine, list(gradient.chunk(world_size)))\n    mine /= world_size",
    "mine.copy_(gradient.chunk(world_size)[rank])",
)
EVERYTHING = """\
import torch
import torch.distributed as dist


def zero_step(weights: torch.Tensor, gradient: torch.Tensor, update) -> None:
    dist.all_reduce(gradient)
    update(weights, gradient / dist.get_world_size())
"""

CHECK_PROGRAM = """\
from workshop.lessons.on_ranks.zero_step import check_zero_step
check_zero_step(zero_step)
"""


def _check(reports: list[dict[str, Any]]) -> str:
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
        told = (
            f"`update` was called {len(seen)} times" if len(seen) != 1 else f"`update` got {seen[0]:,} values"
        )
        raise Wrong(
            f"On rank {rank} {told}; wanted one call with the {part:,} values of this rank's part. What "
            "it is given, it keeps moments for."
        )


def _right_weights(rank: int, report: dict[str, Any]) -> None:
    held, wanted, other = report["held"], report["wanted"], report["summed"]
    if held == wanted:
        return
    own = slice(rank * report["part_length"], (rank + 1) * report["part_length"])
    told = f"The weights on rank {rank} are now {shown(held)}; wanted {shown(wanted)}. "
    if held == other:
        raise Wrong(told + "That is a step with the sum of the gradients: divide by the number of ranks.")
    if held[own] == wanted[own]:
        raise Wrong(told + "This rank's own part is right: it lacks the parts of the others (all_gather).")
    raise Wrong(told + "This rank's own part is wrong: its gradient is the mean over all ranks.")


def _nth(count: int) -> str:
    return {2: "half", 4: "quarter"}.get(count, f"{count}th")


ZERO_STEP = Exercise(
    name="zero_step",
    day=2,
    question=QUESTION,
    stub=STUB,
    hints=(
        "Which collective gives each rank the sum of one piece? Its second argument is a list of pieces.",
        "`dist.reduce_scatter(mine, list(gradient.chunk(world_size)))` sums; divide for the mean.",
        "After `update(parts[rank], mine)`: `dist.all_gather(parts, parts[rank].clone())`.",
    ),
    solution=SOLUTION,
    defines=("zero_step",),
    check=_check,
    shows="The halves of an all_reduce, the optimizer between them: the same traffic, an Nth of the state.",
    wrong_answers=(
        WrongAnswer("updates everything", EVERYTHING, "it keeps moments for"),
        WrongAnswer("forgets the gather", NO_GATHER, "it lacks the parts of the others"),
        WrongAnswer("the sum", SUM, "the sum of the gradients"),
        WrongAnswer("its own gradient", OWN_GRADIENT, "its gradient is the mean over all ranks"),
    ),
    ranks=4,
    check_program=CHECK_PROGRAM,
)
