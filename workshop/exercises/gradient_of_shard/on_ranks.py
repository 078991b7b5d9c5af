"""Call the learner's `gradient_of_shard` on every rank: on readable numbers, then on a transposed view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from workshop.exercises.engine.group import join, line_of_wait
from workshop.launch.report import report
from workshop.measure import measure


def try_on_rank(gradient_of_shard: Callable[[Tensor], Tensor]) -> None:
    """Report both cases, and the bytes that the first one sent."""
    join()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    readable = torch.arange(1.0, 2 * ranks + 1).reshape(2 * ranks, 1)
    wide = torch.arange(1.0, 6 * ranks + 1).reshape(3, 2 * ranks)
    reported: dict[str, Any] = {"needed": (ranks - 1) / ranks * readable.nbytes}

    def both() -> None:
        with measure(memory=False) as measured:
            reported["readable"] = _case(gradient_of_shard, readable * (2 + 2 * rank), readable)
        # in a reduce the one that gets the sum sends nothing, and each rank gets one of them
        shares = {"reduce": (ranks - 1) / ranks}
        reported["sent"] = sum(shares.get(row.name, 1) * row.wire_bytes for row in measured.traffic)
        reported["transposed"] = _case(gradient_of_shard, wide.T * (2 + 2 * rank), wide.T)

    reported["waited_at"] = line_of_wait(both)
    report(check=reported)


def _case(gradient_of_shard: Callable[[Tensor], Tensor], gradient: Tensor, one: Tensor) -> dict[str, Any]:
    """Rank r has 2r + 2 times ``one``: the mean over N ranks is N + 1 times ``one``, exactly."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wanted = (ranks + 1) * one.chunk(ranks)[rank]
    alone = gradient.chunk(ranks)[rank].flatten().tolist()
    answer = gradient_of_shard(gradient)
    is_tensor = isinstance(answer, Tensor)
    return {
        "found": answer.detach().flatten().tolist() if is_tensor else None,
        "shape": list(answer.shape) if is_tensor else None,
        "wanted": wanted.flatten().tolist(),
        "wanted_shape": list(wanted.shape),
        "alone": alone,
    }
