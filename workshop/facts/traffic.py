"""One record of what a rank sends: predicted, rehearsed and measured rows have the same form.

Its *payload* is the full, unsharded side of a collective's tensor: what is all-reduced, the gathered result
of an all_gather, the whole input of a reduce_scatter. Its *wire* bytes are what one rank sends
(`workshop.predict.collectives.wire_bytes`).
"""

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
        wire_bytes: what this rank sends if the collective is a ring (`wire_bytes`, as above).
    """

    name: str
    axis: str
    group_size: int
    count: int
    payload_bytes: int
    wire_bytes: int
