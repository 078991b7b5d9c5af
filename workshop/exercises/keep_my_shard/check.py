"""Exercise: ZeRO's second stage. A hook reduces a gradient as soon as it is complete, and keeps one shard.

Rajbhandari et al. 2020, arXiv 1910.02054, section 5.2.
"""

from __future__ import annotations

import math
from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits, shown

MOST_SENT = 1.1  # of the gradients' bytes. A reduce to each owner: 1. An all-reduce on four ranks: 1.5
INSTEAD = {
    "sum": "That is the sum over ranks: divide it by the number of ranks.",
    "own": "That is the gradient of this rank's own batch, without those of the other ranks.",
    "last": "That is of the last micro-batch alone: the shards of the first one must not be lost.",
}


def check(reports: list[dict[str, Any]]) -> str:
    """In turn: nobody waits, the whole is gone, the shard is right and no view, and little was sent."""
    nobody_waits([report["waited_at"] for report in reports], "All ranks must make the same calls.")
    for rank, report in enumerate(reports):
        for weight in report["weights"]:
            _whole_is_gone(rank, weight)
            _right_shard(rank, weight)
            _no_view(rank, weight)
        if report["sent"] > MOST_SENT:
            raise Wrong(
                f"The shards are right. But rank {rank} sends {report['sent']:.2g} times the bytes of the "
                "gradients, and a reduce-scatter less than once. An all-reduce, or a gather of whole "
                "gradients, gives every rank what it then drops."
            )
    return (
        f"Two weights and two micro-batches on {len(reports)} ranks: each shard is the mean gradient, and no "
        "whole gradient outlived its hook."
    )


def _right_shard(rank: int, weight: dict[str, Any]) -> None:
    which = f"of a weight of shape {tuple(weight['shape'])}"
    answer, wanted = weight["found"], weight["wanted"]
    if answer is None:
        raise Wrong(
            f"On rank {rank}, `kept` has nothing under the weight as its key, or no tensor ({which})."
        )
    if weight["found_shape"] != weight["wanted_shape"]:
        raise Wrong(
            f"On rank {rank}, the shard {which} has shape {tuple(weight['found_shape'])}; wanted shape "
            f"{tuple(weight['wanted_shape'])}."
        )
    if _same(answer, wanted):
        return
    advice = next((words for name, words in INSTEAD.items() if _same(answer, weight["others"][name])), "")
    raise Wrong(
        f"On rank {rank}, the shard {which} is {shown(answer)} after two micro-batches; wanted "
        f"{shown(wanted)}. {advice}".rstrip()
    )


def _whole_is_gone(rank: int, weight: dict[str, Any]) -> None:
    if weight["left"]:
        raise Wrong(
            f"The whole gradient is still there on rank {rank} when the function returns: `weight.grad` is "
            "not None. Its memory is not free, and the next micro-batch adds to what is in it."
        )


def _no_view(rank: int, weight: dict[str, Any]) -> None:
    storage, wanted = weight["storage_bytes"], weight["wanted_bytes"]
    if storage > wanted:
        raise Wrong(
            f"What is kept on rank {rank} is a view of a larger tensor, of {storage} bytes, and the shard "
            f"has {wanted}. As long as the view exists, the whole tensor stays in memory."
        )


def _same(answer: list[float], wanted: list[float]) -> bool:
    return all(math.isclose(one, two, rel_tol=1e-5) for one, two in zip(answer, wanted, strict=True))
