"""Call the learner's ring on every rank, and count what it sends.

Every rank knows the whole sequence: it computes full attention for its own queries, and what the usual
mistakes would give, by walking the ring alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from workshop.exercises.engine.group import all_say, join, line_of_wait
from workshop.exercises.engine.sent_bytes import counted
from workshop.launch.report import report

POSITIONS, HEAD_DIM = 6, 4  # of each rank
LARGER = 200.0  # by so much are large scores: e^200 is no number of 32 bits
Merge = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def attend(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """One block: what the queries get from these keys, and the logarithm of the sum of exponentials."""
    scores = query @ key.T * query.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), float("-inf"))
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def attend_to_large(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """The same with a number added to every score, which changes the logarithm and nothing else."""
    out, lse = attend(query, key, value, causal)
    return out, lse + LARGER


def try_on_rank(rotate_the_ring: Callable[..., Any]) -> None:
    """Report what this rank found, what is wanted, what mistakes would give, and what was sent."""
    join()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(ranks * POSITIONS, HEAD_DIM, generator=generator) * 2 for _ in range(3))
    mine = [whole.chunk(ranks)[rank].clone() for whole in (query, key, value)]
    reported: dict[str, Any] = {}

    def run() -> None:
        with counted() as counter:
            reported["found"] = rotate_the_ring(*mine, attend)
        reported["sent"] = counter["bytes"]

    reported["waited_at"] = line_of_wait(run)
    answer = reported.get("found")
    wanted = attend(query, key, value, causal=True)[0].chunk(ranks)[rank]
    reported["found"] = answer.detach().flatten().tolist() if isinstance(answer, Tensor) else None
    reported["wanted"] = wanted.flatten().tolist()
    whole = isinstance(answer, Tensor) and answer.numel() == wanted.numel()
    if reported["waited_at"] is None and all_say(whole):
        large = rotate_the_ring(*mine, attend_to_large).view_as(wanted)
        reported["off_if_large"] = ((large - wanted).abs().max() / wanted.abs().max()).item()
    reported["allowed"] = (ranks - 1) * (mine[1].nbytes + mine[2].nbytes)
    reported["mistakes"] = _mistakes(query.chunk(ranks)[rank], key.chunk(ranks), value.chunk(ranks), rank)
    report(check=reported)


def merged(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> tuple[Tensor, Tensor]:
    """The right merge."""
    both = torch.logaddexp(lse, part_lse)
    shares = ((one - both).exp().unsqueeze(-1) for one in (lse, part_lse))
    mine, theirs = shares
    return out * mine + part * theirs, both


def _mistakes(
    query: Tensor, keys: tuple[Tensor, ...], values: tuple[Tensor, ...], rank: int
) -> dict[str, list[float]]:
    """What this rank would return after each of the usual mistakes."""
    ranks = len(keys)

    def walk(merge: Merge = merged, mistaken: bool = False, later: bool = False) -> list[float]:
        """In step s the keys of rank - s are there; by mistake they are taken for those of rank + s.

        (Who sends to the left and takes the blocks for those of rank - s sees the same pairs.)
        """
        out, lse = attend(query, keys[rank], values[rank], causal=True)
        for step in range(1, ranks):
            there = (rank - step) % ranks
            owner = (rank + step) % ranks if mistaken else there
            if later or owner < rank:
                out, lse = merge(out, lse, *attend(query, keys[there], values[there], causal=False))
        return out.flatten().tolist()

    return {
        "added": walk(lambda out, lse, part, _: (out + part, lse)),
        "halved": walk(lambda out, lse, part, _: ((out + part) / 2, lse)),
        "lse_kept": walk(lambda out, lse, part, part_lse: (merged(out, lse, part, part_lse)[0], lse)),
        "never_merged": walk(lambda out, lse, *_: (out, lse)),
        "not_the_owner": walk(mistaken=True),
        "every_block": walk(later=True),
    }
