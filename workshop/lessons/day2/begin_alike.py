"""Exercise: the other half of data parallelism, which is easy to forget: ranks must begin as one model.

Averaged gradients give every rank the same *step*. Ranks that began at different places stay just as far
apart, and no error says so. DistributedDataParallel sends rank 0's parameters and buffers when it is built
(Li et al., arXiv:2006.15704).
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Wrong, nobody_waits, shown
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Ranks build their models with random numbers of their own. Write `begin_alike(model)`: with `dist.broadcast`,
give every rank all of rank 0's numbers, in place. A model's numbers are its parameters, frozen ones too, and
its buffers (a batch norm's running mean, say)."""

STUB = '''\
import torch
import torch.distributed as dist


def begin_alike(model: torch.nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers, in place."""
    ...
'''

SOLUTION = '''\
import torch
import torch.distributed as dist


def begin_alike(model: torch.nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers, in place."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
'''

NO_BUFFERS = SOLUTION.replace("[*model.parameters(), *model.buffers()]", "model.parameters()")

TRAINED_ONLY = SOLUTION.replace(
    "[*model.parameters(), *model.buffers()]",
    "[*(p for p in model.parameters() if p.requires_grad), *model.buffers()]",
)

MEAN = SOLUTION.replace(
    "        dist.broadcast(tensor.detach(), src=0)\n",
    "        dist.all_reduce(tensor.detach())\n        tensor.detach().div_(dist.get_world_size())\n",
)

ALONE = SOLUTION.replace(
    "        dist.broadcast(tensor.detach(), src=0)\n",
    "        if dist.get_rank() > 0:\n            tensor.detach().zero_()\n",
)

CHECK_PROGRAM = """\
from workshop.lessons.on_ranks.begin_alike import check_begin_alike
check_begin_alike(begin_alike)
"""

KINDS = {"weight": "a parameter", "frozen": "a parameter that is not trained", "running_mean": "a buffer"}


def _check(reports: list[dict[str, Any]]) -> str:
    """Nobody waits in vain; every tensor on every rank is what rank 0 began with."""
    nobody_waits(
        [report["waited_at"] for report in reports], "All ranks must make the same calls in the same order."
    )
    wanted = reports[0]["began_with"]
    for rank, report in enumerate(reports):
        for name, value in report["held"].items():
            if value != wanted[name]:
                raise Wrong(_difference(reports, rank, name))
    return f"All {len(wanted)} tensors of the model are rank 0's on all {len(reports)} ranks."


def _difference(reports: list[dict[str, Any]], rank: int, name: str) -> str:
    began = [report["began_with"][name] for report in reports]
    found = reports[rank]["held"][name]
    told = (
        f"`{name}` ({KINDS[name]}) was {' and '.join(map(shown, began))} on ranks 0 and 1. On rank {rank} it "
        f"is now {shown(found)}; wanted {shown(began[0])}. "
    )
    if found == sum(began) / len(began):
        return (
            told
            + "That is the mean. It would do for weights, but rank 0's are asked for: counters are whole."
        )
    if found == began[rank]:
        return told + "Nobody sent it."
    return told.rstrip()


BEGIN_ALIKE = Exercise(
    name="begin_alike",
    day=2,
    question=QUESTION,
    stub=STUB,
    hints=(
        "`dist.broadcast(tensor, src=0)` overwrites the tensor of every other rank with rank 0's.",
        "`model.parameters()` and `model.buffers()` are two lists; a broadcast for each member of both.",
        "`for tensor in [*model.parameters(), *model.buffers()]: dist.broadcast(tensor.detach(), src=0)`",
    ),
    solution=SOLUTION,
    defines=("begin_alike",),
    check=_check,
    shows="From the same place, with the same steps, N copies stay one model.",
    wrong_answers=(
        WrongAnswer("forgets the buffers", NO_BUFFERS, "`running_mean` (a buffer)"),
        WrongAnswer("forgets frozen parameters", TRAINED_ONLY, "`frozen` (a parameter that is not trained)"),
        WrongAnswer("the mean", MEAN, "That is the mean."),
        WrongAnswer("zeros", ALONE, "On rank 1 it is now 0; wanted 1."),
    ),
    ranks=2,
    check_program=CHECK_PROGRAM,
)
