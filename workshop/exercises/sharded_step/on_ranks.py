"""Call the learner's `sharded_step` on every rank, on two matrices, beside the same step in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from workshop.exercises.engine.group import join, line_of_wait
from workshop.launch.report import report
from workshop.measure import measure

LR = 0.5


def try_on_rank(sharded_step: Callable[..., Any]) -> None:
    """Report each shard after the step, what people have instead of it, the gathers, and the passes sent."""
    join()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(0)
    sizes = ((world_size, 2 * world_size), (2 * world_size, world_size))  # a transposed one would not fit
    whole = [torch.randn(size, generator=generator) for size in sizes]
    batch = torch.randn(2 * world_size, world_size, generator=generator)
    mine = batch.chunk(world_size)[rank]
    shards = [weight.chunk(world_size)[rank].clone() for weight in whole]
    gathers = 0

    def gather(shard: Tensor) -> Tensor:
        nonlocal gathers
        gathers += 1
        rows = [torch.empty_like(shard) for _ in range(world_size)]
        dist.all_gather(rows, shard.contiguous())
        return torch.cat(rows)

    with measure(memory=False) as measured:
        waited_at = line_of_wait(sharded_step, shards, mine.clone(), gather, LR)
    one_pass = (world_size - 1) / world_size * sum(weight.nbytes for weight in whole)
    after = {
        "wanted": _new_weights(whole, batch),
        "before": whole,
        "sum": _new_weights(whole, batch, LR * world_size),
        "own": _new_weights(whole, mine),
        "moved": _new_weights(whole, batch, updates_first=True),
        "uphill": _new_weights(whole, batch, -LR),
    }
    by_name = {name: [new.chunk(world_size)[rank] for new in weights] for name, weights in after.items()}
    report(
        check={
            "waited_at": waited_at,
            "gathers": gathers,
            "passes": sum(row.wire_bytes for row in measured.traffic) / one_pass,
            "layers": [_told(shard, place, by_name) for place, shard in enumerate(shards)],
        }
    )


def _new_weights(
    weights: Sequence[Tensor], x: Tensor, lr: float = LR, updates_first: bool = False
) -> list[Tensor]:
    """The step in one process; ``updates_first`` sends the gradient back through the new weights."""
    inputs = [x]
    for weight in weights:
        inputs.append(inputs[-1] @ weight)
    gradient, new = 2 * (inputs[-1] - x) / x.numel(), []
    for weight, y in zip(reversed(weights), reversed(inputs[:-1]), strict=True):
        new.append(weight - lr * y.T @ gradient)
        gradient = gradient @ (new[-1] if updates_first else weight).T
    return new[::-1]


def _told(shard: Any, place: int, by_name: dict[str, list[Tensor]]) -> dict[str, Any]:
    """One shard, and what it is after the right step and after each wrong one."""
    others = {name: shards[place].flatten().tolist() for name, shards in by_name.items()}
    return {
        "found": shard.detach().flatten().tolist() if isinstance(shard, Tensor) else None,
        "wanted": others.pop("wanted"),
        "others": others,
    }
