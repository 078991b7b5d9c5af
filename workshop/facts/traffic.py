"""One record of what a rank sends: predicted, rehearsed and measured rows have the same form.

Its *payload* is the full, unsharded side of a collective's tensor: what is all-reduced, the gathered result
of an all_gather, the whole input of a reduce_scatter. Its *wire* bytes are what one rank sends
(`wire_bytes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

RING_ROUNDS = {
    "all_reduce": 2,
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_to_all": 1,
    "gather": 1,
    "scatter": 1,
}
"""How often a ring passes the payload on: an all_reduce is a reduce_scatter and an all_gather."""
_SENT_WHOLE = ("broadcast", "send")

COLLECTIVES = (*RING_ROUNDS, *_SENT_WHOLE)


def wire_bytes(collective: str, payload_bytes: Any, ranks: Any) -> Any:
    """Bytes that one rank sends in a collective which runs as a ring; 0 in a group of one.

    An all_reduce sends 2(n-1)/n of the payload, the other collectives of a ring (n-1)/n, a broadcast and a
    send all of it (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", 2005).

    Args:
        collective: one of `COLLECTIVES`.
        payload_bytes: the full side of its tensor; a number, or an array.
        ranks: in its group; a number, or an array that broadcasts against ``payload_bytes``.

    Raises:
        ValueError: an unknown collective; the message lists the known ones.
    """
    if collective in _SENT_WHOLE:
        return (ranks > 1) * payload_bytes
    if collective not in RING_ROUNDS:
        raise ValueError(f"unknown collective {collective!r} (known: {', '.join(COLLECTIVES)})")
    return RING_ROUNDS[collective] * (ranks - 1) / ranks * payload_bytes


@dataclass(frozen=True)
class Traffic:
    """All collectives of one kind over one group, on one rank, in one step.

    Args:
        name: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv ...
        axis: the mesh axis the group belongs to (`world` for all ranks).
        group_size: ranks in the group.
        count: calls per step.
        payload_bytes: the full (unsharded) side of the tensor, summed over the calls.
        wire_bytes: what this rank sends if the collective is a ring; see the function `wire_bytes`.
    """

    name: str
    axis: str
    group_size: int
    count: int
    payload_bytes: int
    wire_bytes: int
