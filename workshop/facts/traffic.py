"""One record of what a rank sends: predicted, rehearsed and measured rows have the same form."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """All collectives of one kind over one group, on one rank, in one step.

    Args:
        name: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv ...
        axis: the mesh axis the group belongs to (`world` for all ranks).
        group_size: ranks in the group.
        count: calls per step.
        payload_bytes: the full (unsharded) side of the tensor, summed over the calls.
        wire_bytes: what this rank sends if the collective is a ring: 2(n-1)/n of the payload for an
            all_reduce, (n-1)/n for all_gather, reduce_scatter and all_to_all (Thakur, Rabenseifner and Gropp
            2005).
    """

    name: str
    axis: str
    group_size: int
    count: int
    payload_bytes: int
    wire_bytes: int
