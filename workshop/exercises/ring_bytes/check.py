"""Exercise: the bytes a rank sends in a ring all-reduce.

Reduce-scatter: N - 1 steps, in each a rank sends one of N chunks. All-gather: the same again. Together
2 (N - 1) / N of the tensor. Where the ranks do the adding themselves, the busiest one cannot send less:
Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel
Distrib. Comput. 69 (2009).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

CALLS = tuple(Call(args) for args in ((1000, 4), (4096, 2), (999, 3), (10**9, 8), (512, 1)))

MISTAKES = (
    Mistake(
        lambda n, _: 2 * n,
        "That is the limit for very many ranks; with few ranks, a rank sends noticeably less.",
    ),
    Mistake(
        lambda n, world: n * (world - 1),
        "That is what sending the whole tensor to every other rank would cost; the ring sends chunks.",
    ),
    Mistake(
        lambda n, world: n * (world - 1) / world,
        "That is one trip around the ring (the reduce-scatter); there is a second, the all-gather.",
    ),
    Mistake(
        lambda n, world: 2 * n * (world - 1),
        "That sends the whole tensor in each step; the ring sends one chunk.",
    ),
    Mistake(
        lambda n, world: 2 * n / world, "That is one step of each trip; a trip has `world_size - 1` steps."
    ),
)


def check(names: dict[str, Any]) -> str:
    """Five calls against 2 (N - 1) / N of the bytes."""
    compare(names["ring_bytes"], "ring_bytes", CALLS, lambda n, world: 2 * n * (world - 1) / world, MISTAKES)
    return "A rank sends 2 (N - 1) / N times the tensor's bytes: 1.5 times on 4 ranks, 1.998 times on 1,024."
