"""Call the learner's ring all-reduce on every rank: on numbers one can read, then on random ones.

The bytes that each rank sends are counted: a right sum says nothing about how it came about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from workshop.exercises.engine.group import all_say, join, line_of_wait
from workshop.exercises.engine.sent_bytes import counted
from workshop.launch.report import report

READABLE_LENGTH = 8
LENGTHS_AND_SEEDS = ((4, 0), (64, 1), (40_000, 2), (1_000_000, 3))


def try_on_rank(ring_all_reduce: Callable[[torch.Tensor], Any]) -> None:
    """Report what this rank held after the readable case and, if all ranks were right, the random cases.

    A wrong answer may leave messages on the way, so nothing more is sent after one.
    """
    join()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    tensor = readable(rank, world_size)
    wanted = torch.stack([readable(other, world_size) for other in range(world_size)]).sum(dim=0)
    waited_at, _ = _call(ring_all_reduce, tensor)
    reported: dict[str, Any] = {
        "waited_at": waited_at,
        "began_with": readable(rank, world_size).tolist(),
        "held": tensor.tolist(),
        "random": [],
    }
    if waited_at is None and all_say(torch.equal(tensor, wanted)):
        reported["random"] = _random_cases(ring_all_reduce)
    report(check=reported)


def readable(rank: int, world_size: int) -> torch.Tensor:
    """Chunk c holds (c + 1) * 10^rank: the digits of a sum tell whose numbers are in it, of which chunk."""
    chunks = torch.arange(1, world_size + 1, dtype=torch.float32)
    return chunks.repeat_interleave(READABLE_LENGTH // world_size) * 10**rank


def _random_cases(ring_all_reduce: Callable[[torch.Tensor], Any]) -> list[dict[str, Any]]:
    """One case after the other, as long as all ranks come out of it."""
    cases: list[dict[str, Any]] = []
    for length, seed in LENGTHS_AND_SEEDS:
        cases.append(_random_case(ring_all_reduce, length, seed))
        if cases[-1]["waited_at"] is not None or not all_say(True):
            break
    return cases


def _random_case(ring_all_reduce: Callable[[torch.Tensor], Any], length: int, seed: int) -> dict[str, Any]:
    """Against the library, on random numbers that differ by rank; differences relative to the largest."""
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    mine = torch.randn(length, generator=generator)
    library = mine.clone()
    waited_at, counter = _call(ring_all_reduce, mine)
    if waited_at is None:
        line_of_wait(dist.all_reduce, library)  # in vain where another rank still hangs: that rank tells
    return {
        "length": length,
        "tensor_bytes": mine.nbytes,
        "sent_bytes": counter.pop("bytes", 0),
        "collectives": sorted(counter),
        "waited_at": waited_at,
        "difference": float((mine - library).abs().max() / library.abs().max()),
    }


def _call(
    ring_all_reduce: Callable[[torch.Tensor], Any], tensor: torch.Tensor
) -> tuple[int | None, Counter[str]]:
    with counted() as counter:
        return line_of_wait(ring_all_reduce, tensor), counter
