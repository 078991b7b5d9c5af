"""Exercise: the other half of data parallelism, which is easy to forget: ranks must begin as one model.

Averaged gradients give every rank the same *step*. Ranks that began at different places stay just as far
apart, and no error says so. DistributedDataParallel sends rank 0's parameters and buffers when it is built
(Li et al., arXiv:2006.15704).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits, shown

KINDS = {"weight": "a parameter", "frozen": "a parameter that is not trained", "running_mean": "a buffer"}


def check(reports: list[dict[str, Any]]) -> str:
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
    answer = reports[rank]["held"][name]
    difference = (
        f"`{name}` ({KINDS[name]}) was {' and '.join(map(shown, began))} on ranks 0 and 1. On rank {rank} it "
        f"is now {shown(answer)}; wanted {shown(began[0])}. "
    )
    if answer == sum(began) / len(began):
        return (
            difference
            + "That is the mean. It would work for weights, but the task is to copy rank 0's numbers: "
            "a counter must stay whole."
        )
    if answer == began[rank]:
        return difference + "It was not sent."
    return difference.rstrip()
