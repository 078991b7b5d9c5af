"""Exercise: the one line of data parallelism that makes N copies one model.

Each rank has the gradient of the mean loss over its own batch. If all batches have one size, the mean of
these is the gradient of the mean loss over the joined batch: exactly what one process with the whole
batch would compute. DistributedDataParallel does no more than this, only in buckets and while backward
still runs (Li et al., arXiv:2006.15704).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits, shown

TOLERANCE = 1e-5  # of the largest gradient, fp32
SAME_CALLS = "All ranks must make the same calls in the same order."


def check(reports: list[dict[str, Any]]) -> str:
    """In turn: nobody waits in vain, gradients one can read, a model against its single-process twin."""
    nobody_waits([report["waited_at"] for report in reports], SAME_CALLS)
    for rank, report in enumerate(reports):
        for name, wanted in report["wanted"].items():
            if report["held"][name] != wanted:
                raise Wrong(_difference(reports, rank, name))
    nobody_waits([report["twin"]["waited_at"] for report in reports], SAME_CALLS)
    for rank, report in enumerate(reports):
        twin = report["twin"]
        if not twin["difference"] <= TOLERANCE:
            raise Wrong(
                f"On rank {rank} the gradient of `{twin['worst']}` differs from that of one process "
                f"with the joined batch by {twin['difference']:.1g} of its largest value; "
                f"wanted at most {TOLERANCE:.1g}."
            )
    return f"The gradients on {len(reports)} ranks are those of one process with the joined batch."


def _difference(reports: list[dict[str, Any]], rank: int, name: str) -> str:
    """One gradient, before and after, and what was done to it instead."""
    before = [report["began_with"][name] for report in reports]
    answer, wanted = reports[rank]["held"][name], reports[rank]["wanted"][name]
    began = " and ".join(shown(value) for value in before)
    difference = (
        f"The gradient of `{name}` was {began} on ranks 0 and 1. On rank {rank} it is now {shown(answer)}; "
        f"wanted {shown(wanted)}. "
    )
    if answer == sum(before):
        return difference + "That is the sum: divide by the number of ranks."
    held = [report["held"][name] for report in reports]
    if held == before:
        right = [
            other for other, want in reports[rank]["wanted"].items() if reports[rank]["held"][other] == want
        ]
        but = f" (`{right[0]}` is right)" if right else ""
        return difference + f"It has not changed{but}: the gradient of every parameter must be averaged."
    if all(value == before[0] for value in held):
        return (
            difference + "That is rank 0's gradient: a broadcast gives it to every rank and drops the others."
        )
    return difference.rstrip()
