"""Collectives within a node, as they were timed: seconds by bytes and ranks.

NCCL changes its algorithm and its protocol with the size of a message, so its time is no straight line of
bytes: on eight H100 an all-reduce of 1 MiB takes 25 us, of 8 MiB 79, of 512 MiB 2,111 (NVLink SHARP adds in
the switch: 445 GB/s of a link of 450), while an all-gather of 512 MiB reaches 335 GB/s, and one of two ranks
258. `facts/data/collectives_in_node.csv` has these times for groups of 2, 4 and 8 ranks and powers of two of
bytes. Here they are read between the points: straight lines in bytes, the last one going on for larger
messages. Groups of other sizes take the next larger group's curve, at the bytes that load its bus as much.

So does a group larger than any that was timed (GB200's rack has 72 ranks on one link, timed were 4); and it
starts later by what each doubling of the ranks adds.

A link that is slower than the one that was timed (A800, H800) makes messages longer in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from workshop.facts.microbenchmarks import in_node

Numbers = Any
LINKS = {"A100-80GB": 300e9, "H100": 450e9, "GB200": 900e9, "B200": 900e9}
"""Bytes/s, one way, of the link each was timed on (`links.toml`: nvlink-3, nvlink-4, nvlink-5)."""


@dataclass(frozen=True)
class NodeCurve:
    """Seconds by collective, [group sizes, bytes]: groups of 2, 4, 8 ranks; bytes 2^first, 2^(first+1) ..."""

    device: str
    first: int
    seconds: dict[str, np.ndarray]

    def time(self, collective: str, num_bytes: Numbers, ranks: Numbers) -> np.ndarray:
        """Seconds of a collective of `ranks` ranks in one node; 0 for one rank."""
        table = self.seconds[collective]
        n, size = np.asarray(ranks, float), np.asarray(num_bytes, float)
        doublings = np.log2(np.maximum(n, 2))
        group = np.minimum(np.ceil(doublings - 1e-9).astype(int), len(table)) - 1
        # The same bytes on the bus take the same time.
        size = size * bus_share(np.maximum(n, 2)) / bus_share(np.exp2(group + 1.0))
        point = np.log2(np.maximum(size, 1.0)) - self.first
        low = np.clip(point.astype(int), 0, table.shape[1] - 2)
        begin, end = table[group, low], table[group, low + 1]
        # Straight lines in bytes; below the smallest message that was timed nothing gets faster.
        seconds = begin + (end - begin) * np.maximum(size / np.exp2(low + float(self.first)) - 1, 0.0)
        if (doublings > len(table)).any():
            each = np.maximum(table[-1, 0] - table[-2, 0], 0.0)
            seconds = seconds + each * np.maximum(doublings - len(table), 0.0)
        return np.where(n > 1, seconds, 0.0)

    def bandwidth(self, collective: str = "all_gather") -> float:
        """Bytes/s on the bus that the largest group reaches with the largest message."""
        table = self.seconds[collective]
        n, size = 2.0 ** len(table), 2.0 ** (self.first + table.shape[1] - 1)
        rounds = 2 if collective == "all_reduce" else 1
        return float(rounds * size * bus_share(n) / table[-1, -1])


def bus_share(ranks: Numbers) -> Any:
    """The share of a tensor that crosses each rank's link in one round of a ring."""
    return (ranks - 1) / ranks


@cache
def node_curve(device: str, library: str = "nccl-2025") -> NodeCurve | None:
    """The curve of a device, or None where nobody timed one.

    Where a source has all-reduces only, a reduce-scatter and an all-gather are half of one each (a ring's
    all-reduce is the one after the other), and so is an all-to-all, which sends as much.
    """
    mine = [row for row in in_node() if (row.device, row.library) == (device, library)]
    if not mine:
        return None
    first = int(np.log2(min(row.num_bytes for row in mine)))
    last = int(np.log2(max(row.num_bytes for row in mine)))
    groups = sorted({row.ranks for row in mine})
    found: dict[str, np.ndarray] = {}
    for collective in {row.collective for row in mine}:
        table = np.full((len(groups), last - first + 1), np.nan)
        for row in mine:
            if row.collective == collective:
                table[groups.index(row.ranks), int(np.log2(row.num_bytes)) - first] = row.seconds
        found[collective] = table
    for other in ("reduce_scatter", "all_gather", "all_to_all"):
        found.setdefault(other, found["all_reduce"] / 2)
    if any(np.isnan(table).any() for table in found.values()):
        raise ValueError(f"collectives_in_node.csv: {device}, {library}: a power of two is not there")
    return NodeCurve(device, first, found)
