"""Exercise: start to average each gradient while backward still computes the next.

This is the idea that makes DistributedDataParallel fast (Li et al., arXiv:2006.15704); what it adds are the
buckets. autograd calls a hook as soon as a parameter's gradient is complete, last layer first.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits

TOLERANCE = 1e-5


def check(reports: list[dict[str, Any]]) -> str:
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
            "started. Start each of them in the hook, so that they are sent while backward still runs."
        )
    if awaited:
        raise Wrong(
            f"The gradients are right, but {awaited} all_reduces were waited for where they were started, so "
            "backward had to wait. `async_op=True` returns at once; wait in finish()."
        )
    return (
        f"All {wanted} all_reduces were on their way before backward returned; the gradients are the means."
    )


def _not_the_mean(rank: int, step: int, ratio: float, ranks: int) -> str:
    difference = (
        f"On rank {rank} gradients of step {step + 1} are {ratio:.4g} times the mean; wanted 1 times. "
    )
    if abs(ratio - ranks) < TOLERANCE:
        return difference + "That is the sum: divide by the number of ranks."
    if step and ratio < 1:
        return (
            difference + "Step 1 was right. Once finish() is done with a gradient, remove it from the list; "
            "otherwise it is divided again."
        )
    return difference.rstrip()
