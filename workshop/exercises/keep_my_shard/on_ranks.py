"""Let autograd call the learner's hook on every rank: two weights, two micro-batches, readable numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from workshop.exercises.engine.group import join, line_of_wait
from workshop.launch.report import report
from workshop.measure import measure

SIZES = (1.0, 10.0)
"""Of the gradients, by micro-batch: their sum tells which of them is in it."""


def try_on_rank(keep_my_shard: Callable[..., Any]) -> None:
    """Report, for each weight, what is kept after both micro-batches, and what is left of the whole gradient.

    The gradient of number i of a weight is (rank + 1) (i + 1), times the size of the micro-batch.
    """
    join()
    world_size = dist.get_world_size()
    weights = [torch.zeros(world_size * rows, 2, requires_grad=True) for rows in (1, 2)]
    kept: dict[torch.Tensor, Any] = {}
    seen: list[list[tuple[bool, int]]] = [[], []]

    def hook(place: int, weight: torch.Tensor) -> None:
        keep_my_shard(weight, kept)
        answer = kept.get(weight)
        storage = answer.untyped_storage().nbytes() if isinstance(answer, torch.Tensor) else 0
        seen[place].append((weight.grad is not None, storage))

    for place, weight in enumerate(weights):
        weight.register_post_accumulate_grad_hook(partial(hook, place))

    def micro_batches() -> None:
        for size in SIZES:
            loss = sum((weight * _gradient(weight, size)).sum() for weight in weights)
            torch.as_tensor(loss).backward()

    with measure(memory=False) as measured:
        waited_at = line_of_wait(micro_batches)
    by_weight = [_told(weight, kept.get(weight), seen[place]) for place, weight in enumerate(weights)]
    sent = sum(row.wire_bytes for row in measured.traffic)
    gradients = len(SIZES) * sum(weight.nbytes for weight in weights)
    report(check={"waited_at": waited_at, "sent": sent / gradients, "weights": by_weight})


def _gradient(weight: torch.Tensor, size: float) -> torch.Tensor:
    """This rank's gradient of a weight in a micro-batch."""
    ones = torch.arange(1.0, weight.numel() + 1).reshape(weight.shape)
    return (dist.get_rank() + 1) * size * ones


def _told(weight: torch.Tensor, answer: Any, seen: list[tuple[bool, int]]) -> dict[str, Any]:
    """One weight: what is kept, what is wanted, and what people keep instead."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mean = (world_size + 1) / 2 / (rank + 1)  # of all ranks, in multiples of this rank's
    one = _gradient(weight, 1.0).chunk(world_size)[rank]
    wanted = sum(SIZES) * mean * one
    others = {
        "sum": world_size * wanted,
        "own": sum(SIZES) * one,
        "last": SIZES[-1] * mean * one,
    }
    is_tensor = isinstance(answer, torch.Tensor)
    return {
        "shape": list(weight.shape),
        "found": answer.detach().flatten().tolist() if is_tensor else None,
        "found_shape": list(answer.shape) if is_tensor else None,
        "storage_bytes": max((storage for _, storage in seen), default=0),
        "wanted": wanted.flatten().tolist(),
        "wanted_shape": list(wanted.shape),
        "wanted_bytes": wanted.nbytes,
        "others": {name: value.flatten().tolist() for name, value in others.items()},
        "left": any(left for left, _ in seen),
    }
