"""Exercise: start to average each gradient while backward still computes the next.

This is the idea that makes DistributedDataParallel fast (Li et al., arXiv:2006.15704); what it adds are the
buckets. autograd calls a hook as soon as a parameter's gradient is complete, last layer first.
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Wrong, nobody_waits
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Write `overlapped_average(model)`. It registers a hook that starts a gradient's all_reduce as soon as backward
has made it, without waiting, and returns a function `finish()`. After `loss.backward(); finish()` every
gradient is the mean over ranks. Hooks stay, so it must work for many steps."""

STUB = '''\
import torch
import torch.distributed as dist


def overlapped_average(model: torch.nn.Module):
    """Average gradients while backward runs; returns finish(), to be called after backward."""
    started = []

    def start(parameter):
        # Called by autograd: parameter.grad is complete.
        ...

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(start)

    def finish():
        # Called by you: wait for what was started, make means of sums.
        ...

    return finish
'''

SOLUTION = '''\
import torch
import torch.distributed as dist


def overlapped_average(model: torch.nn.Module):
    """Average gradients while backward runs; returns finish(), to be called after backward."""
    started = []

    def start(parameter):
        started.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(start)

    def finish():
        for parameter, work in started:
            work.wait()
            parameter.grad /= dist.get_world_size()
        started.clear()

    return finish
'''

WAITS = """\
import torch
import torch.distributed as dist


def overlapped_average(model: torch.nn.Module):
    def start(parameter):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(start)
    return lambda: None
"""

AFTERWARDS = """\
import torch
import torch.distributed as dist


def overlapped_average(model: torch.nn.Module):
    started = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(started.append)

    def finish():
        for parameter in started:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        started.clear()

    return finish
"""

SUM = SOLUTION.replace("            parameter.grad /= dist.get_world_size()\n", "").replace(
    "for parameter, work in", "for _, work in"
)

NEVER_CLEARED = SOLUTION.replace("        started.clear()\n", "")

CHECK_PROGRAM = """\
from workshop.lessons.on_ranks.overlapped_average import check_overlapped_average
check_overlapped_average(overlapped_average)
"""

TOLERANCE = 1e-5


def _check(reports: list[dict[str, Any]]) -> str:
    """In turn: nobody waits in vain, means in the first and in later steps, started early, not waited for."""
    nobody_waits(
        [report["waited_at"] for report in reports], "All ranks must make the same calls in the same order."
    )
    for rank, report in enumerate(reports):
        for step, ratio in enumerate(report["ratios"]):
            if not abs(ratio - 1) <= TOLERANCE:
                raise Wrong(_not_the_mean(rank, step, ratio, len(reports)))
    first = reports[0]
    wanted, early, awaited = first["wanted"], first["in_backward"], first["awaited"]
    if early < wanted:
        raise Wrong(
            f"The gradients are right, but when backward returned, {early} of {wanted} all_reduces had been "
            "started. Start each in the hook: then the wire works while backward does."
        )
    if awaited:
        raise Wrong(
            f"The gradients are right, but {awaited} all_reduces were waited for where they were started: "
            "backward stood still. `async_op=True` returns at once; wait in finish()."
        )
    return (
        f"All {wanted} all_reduces were on their way before backward returned; the gradients are the means."
    )


def _not_the_mean(rank: int, step: int, ratio: float, ranks: int) -> str:
    told = f"On rank {rank} gradients of step {step + 1} are {ratio:.4g} times the mean; wanted 1 times. "
    if abs(ratio - ranks) < TOLERANCE:
        return told + "That is the sum: divide by the number of ranks."
    if step and ratio < 1:
        return (
            told + "Step 1 was right: what finish() has finished must be forgotten, or it is divided again."
        )
    return told.rstrip()


OVERLAPPED_AVERAGE = Exercise(
    name="overlapped_average",
    day=2,
    question=QUESTION,
    stub=STUB,
    hints=(
        "`work = dist.all_reduce(tensor, async_op=True)` returns at once; `work.wait()` waits.",
        "`started` is how the hook tells finish() what there is to wait for. What belongs in it?",
        "Append `(parameter, dist.all_reduce(parameter.grad, async_op=True))`; later wait, divide, clear.",
    ),
    solution=SOLUTION,
    defines=("overlapped_average",),
    check=_check,
    shows="The same gradients, and the wire works while backward does. With buckets it is DDP.",
    wrong_answers=(
        WrongAnswer("waits in the hook", WAITS, "backward stood still"),
        WrongAnswer("after backward", AFTERWARDS, "0 of 4 all_reduces had been started"),
        WrongAnswer("the sum", SUM, "2 times the mean; wanted 1 times. That is the sum"),
        WrongAnswer("never cleared", NEVER_CLEARED, "Step 1 was right"),
    ),
    ranks=2,
    check_program=CHECK_PROGRAM,
)
