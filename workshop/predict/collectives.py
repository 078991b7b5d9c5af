"""What ranks say to each other: how many bytes, and how long it takes.

Bytes first. With n ranks and a tensor of B bytes (the whole of it, before sharding or after gathering), the
least a rank must send is

    all_reduce       2 (n-1)/n B      = reduce_scatter + all_gather       (Patarasuk and Yuan 2009)
    reduce_scatter     (n-1)/n B
    all_gather         (n-1)/n B      and gather, scatter
    all_to_all         (n-1)/n B      B: what one rank holds
    broadcast, send            B

Ring algorithms reach these bounds. Within a node time is what was measured, by device, collective, bytes and
ranks (`NodeCurve`). Where nobody measured, and between nodes, it is *latency* plus bytes over *rate*
(Hockney 1994), t = a + bytes / b: the curve of bandwidth against message size, b B/(B + a b), follows.

**Topology.** Ranks of a group that share a node talk over the node's link; if a group spans nodes, every
byte must also cross the network, where each device has its own adapter. A ring over m members per node can
use m adapters at once, because NCCL builds m rings that leave each node through different ones. So its rate
is min(m * network, link): the slower of what the members of one node take for their share of the bytes,
and of what the adapters take. That is why a data-parallel group with 8 members per node reduces 8 times
faster than one whose members sit on different nodes.

**Between nodes** time was measured as well, by nodes and bytes (`facts/data/collectives_between_nodes.csv`).
What a message costs before its first byte grows with the doublings of the nodes, because small ones go
through a tree: 48 us for two nodes, 63 for 32 (`network_start`). What share of its best rate an adapter
reaches grows with the bytes of a step of the ring, the whole over all ranks (`network_share`): on 4 nodes
of 8 B200 half with 0.23 MB on each adapter, nine tenths with 3. So the more nodes, the slower, with as many
bytes: all-gathers over 2 to 64 nodes, timed elsewhere, are within 11 % of that. How high the best rate is,
is the device's `Rates.network`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from workshop.facts.device import ClusterSpec
from workshop.facts.microbenchmarks import between_nodes, dispatch, in_node
from workshop.predict.time.rates import Rates

Numbers = Any

OF_RINGS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
COLLECTIVES = (*OF_RINGS, "broadcast", "send")

LINKS = {"A100-80GB": 300e9, "H100": 450e9, "GB200": 900e9, "B200": 900e9}
"""Bytes/s, one way, of the link each was timed on (`links.toml`: nvlink-3, nvlink-4, nvlink-5)."""


@dataclass(frozen=True)
class NodeCurve:
    """Collectives within a node, as they were timed: seconds by collective, [group sizes, bytes].

    Groups of 2, 4, 8 ranks; bytes 2^first, 2^(first+1) ... (`facts/data/collectives_in_node.csv`). NCCL
    changes its algorithm and its protocol with the size of a message, so its time is no straight line of
    bytes: on eight H100 an all-reduce of 1 MiB takes 25 us, of 8 MiB 79, of 512 MiB 2,111 (NVLink SHARP adds
    in the switch: 445 GB/s of a link of 450), while an all-gather of 512 MiB reaches 335 GB/s, and one of two
    ranks 258.

    Between the points it is a straight line in bytes, the last one going on for larger messages. Groups of
    other sizes take the next larger group's curve, at the bytes that load its bus as much. So does a group
    larger than any that was timed (GB200's rack has 72 ranks on one link, timed were 4); and it starts later
    by what each doubling of the ranks adds. A link that is slower than the one that was timed (A800, H800)
    makes messages longer in proportion.
    """

    device: str
    first: int
    seconds: dict[str, np.ndarray]

    def time(self, collective: str, num_bytes: Numbers, ranks: Numbers) -> np.ndarray:
        """Seconds of a collective of `ranks` ranks in one node; 0 for one rank."""
        table = self.seconds[collective]
        n, size = np.asarray(ranks, float), np.asarray(num_bytes, float)
        several = np.maximum(n, 2)
        doublings = np.log2(several)
        group = np.minimum(np.ceil(doublings - 1e-9).astype(int), len(table)) - 1
        # The same bytes on the bus take the same time.
        size = size * bus_share(several) / bus_share(np.exp2(group + 1.0))
        point = (np.log2(np.maximum(size, 1.0)) - self.first).astype(int)
        low = np.minimum(np.maximum(point, 0), table.shape[1] - 2)  # np.clip is slow for one number
        begin, end = table[group, low], table[group, low + 1]
        # Straight lines in bytes; below the smallest message that was timed nothing gets faster.
        seconds = begin + (end - begin) * np.maximum(size / np.exp2(low + float(self.first)) - 1, 0.0)
        if doublings.max() > len(table):
            each = np.maximum(table[-1, 0] - table[-2, 0], 0.0)
            seconds = seconds + each * np.maximum(doublings - len(table), 0.0)
        return np.where(n > 1, seconds, 0.0)

    def bandwidth(self, collective: str = "all_gather") -> float:
        """Bytes/s on the bus that the largest group reaches with the largest message."""
        table = self.seconds[collective]
        n, size = 2.0 ** len(table), 2.0 ** (self.first + table.shape[1] - 1)
        return float(wire_bytes(collective, size, n) / table[-1, -1])


def bus_share(ranks: Numbers) -> Any:
    """The share of a tensor that crosses each rank's link in one round of a ring."""
    return (ranks - 1) / ranks


def wire_bytes(collective: str, payload_bytes: Numbers, ranks: Numbers) -> Any:
    """Bytes that one rank sends in a collective (the table above); 0 in a group of one.

    Args:
        collective: one of `COLLECTIVES`.
        payload_bytes: the full side of its tensor; a number, or an array.
        ranks: in its group; a number, or an array that broadcasts against ``payload_bytes``.

    Raises:
        ValueError: an unknown collective; the message lists the known ones.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"unknown collective {collective!r} (known: {', '.join(COLLECTIVES)})")
    if collective not in OF_RINGS:
        return (ranks > 1) * payload_bytes
    return (2 if collective == "all_reduce" else 1) * bus_share(ranks) * payload_bytes


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
    tables: dict[str, np.ndarray] = {}
    for collective in {row.collective for row in mine}:
        table = np.full((len(groups), last - first + 1), np.nan)
        for row in mine:
            if row.collective == collective:
                table[groups.index(row.ranks), int(np.log2(row.num_bytes)) - first] = row.seconds
        tables[collective] = table
    for other in ("reduce_scatter", "all_gather", "all_to_all"):
        tables.setdefault(other, tables["all_reduce"] / 2)
    if any(np.isnan(table).any() for table in tables.values()):
        raise ValueError(f"collectives_in_node.csv: {device}, {library}: a power of two is not there")
    return NodeCurve(device, first, tables)


@cache
def _starts() -> tuple[np.ndarray, np.ndarray]:
    """Doublings of nodes, and seconds of an all-reduce of a few bytes over so many."""
    few = sorted({(row.nodes, row.seconds) for row in between_nodes() if row.num_bytes <= 16})
    return np.log2([n for n, _ in few]), np.array([s for _, s in few])


def network_start(nodes: Numbers) -> np.ndarray:
    """Seconds of an all-reduce of a few bytes over so many nodes, on straight lines in doublings of them."""
    at, seconds = _starts()
    slope = (seconds[-1] - seconds[0]) / (at[-1] - at[0])
    return np.asarray(seconds[0] + slope * (np.log2(np.maximum(nodes, 1)) - at[0]))


@cache
def _shares() -> tuple[np.ndarray, np.ndarray]:
    """Doublings of the bytes of a ring's step on each adapter, and the share of its best rate it reaches."""
    timed = (row for row in between_nodes() if row.num_bytes > 2**10 and row.collective == "all_reduce")
    some = sorted(timed, key=lambda row: row.num_bytes)
    n = some[0].nodes * some[0].per_node
    sent = np.array([float(wire_bytes("all_reduce", row.num_bytes, n)) / row.per_node for row in some])
    seconds = np.array([row.seconds for row in some]) - float(network_start(some[0].nodes))
    rate = sent / seconds
    step = np.array([row.num_bytes / n / row.per_node for row in some])
    return np.log2(step), np.maximum.accumulate(rate / rate[-1])


def network_share(step: Numbers) -> np.ndarray:
    """The share of its best rate that an adapter reaches with so many bytes in a step of a ring."""
    at, share = _shares()
    return np.interp(np.log2(np.maximum(step, 1.0)), at, share)


TIMED_DISPATCH = {"GB200": "GB200", "B200": "GB200", "H100": "H100"}
"""Whose exchanges of tokens (`facts/data/dispatch.csv`) stand for a device: those on the same link."""
DISPATCHERS = {"tokens": "hybridep", "alltoall": "alltoall"}


def sent_copies(dispatcher: str, copies: Numbers, places: Numbers) -> Any:
    """How often a token leaves the place where it is, with `copies` experts on as many equal places.

    k experts sit on p (1 - (1 - 1/p)^k) of p places, and one in p of them is where the token is already.
    """
    places = np.asarray(places, float)
    away = (places - 1) / places
    if dispatcher == "alltoall":
        return copies * away
    return places * (1 - away**copies) * away


@cache
def _dispatch_rates(device: str, dispatcher: str) -> tuple[np.ndarray, np.ndarray]:
    """Doublings of ranks, and bytes/s of a rank there and back, as they were timed on one link."""
    mine = [
        row
        for row in dispatch()
        if (row.device, row.dispatcher) == (TIMED_DISPATCH[device], DISPATCHERS[dispatcher])
        and row.ranks <= row.per_node
    ]
    ranks = sorted({row.ranks for row in mine})
    rates = []
    for n in ranks:
        both = [row for row in mine if row.ranks == n]
        each = (
            sent_copies(dispatcher, row.experts_per_token, n) * row.tokens * row.hidden_size for row in both
        )
        rates.append(2 * sum(each) / sum(row.seconds for row in both))
    return np.log2(ranks), np.array(rates)


def dispatch_rate(device: str, dispatcher: str, ranks: Numbers) -> np.ndarray:
    """Bytes/s at which a rank sends tokens to experts on `ranks` ranks of one link, or takes them back.

    On GB200 640 to 725 GB/s of 900 by HybridEP and 520 to 590 by an all-to-all, on H100 430 of 450 and 325.
    """
    at, rates = _dispatch_rates(device, dispatcher)
    return np.interp(np.log2(np.maximum(ranks, 1)), at, rates)


@dataclass(frozen=True)
class Wires:
    """What the collectives of one cluster reach: bytes/s and seconds, from its links and its device's
    rates.

    curve: times measured within a node of its device, on a link `stretch` times as fast as its own.
    """

    link: float
    network: float
    link_seconds: float
    hop_seconds: float
    per_node: int
    adapters: float = np.inf  # at most so many of a node's adapters work for one collective
    curve: NodeCurve | None = None
    stretch: float = 1.0

    @classmethod
    def of(
        cls, cluster: ClusterSpec, rates: Rates, adapters: float = np.inf, library: str = "nccl-2025"
    ) -> Wires:
        """The wires of a cluster; ValueError if it has several devices and no link is known.

        library: whose collectives (`facts.microbenchmarks`); another library's where it has none.
        """
        if min(cluster.num_devices, cluster.devices_per_node) > 1 and cluster.intra is None:
            raise ValueError(
                f"{cluster.name}: no link between its devices is known; name one (intra) to predict time"
            )
        if cluster.num_devices > cluster.devices_per_node and cluster.inter is None:
            raise ValueError(
                f"{cluster.name}: no link between its nodes is known; name one (inter) to predict time"
            )
        intra = cluster.intra.bytes_per_second if cluster.intra else np.inf
        inter = cluster.inter.bytes_per_second if cluster.inter else intra
        curve = node_curve(rates.timed, library) or node_curve(rates.timed, "nccl-2022")
        stretch = LINKS[curve.device] / intra if curve and cluster.intra else 1.0
        return cls(
            curve.bandwidth() / stretch if curve else intra * rates.link,
            inter * rates.network,
            rates.link_seconds,
            rates.hop_seconds,
            cluster.devices_per_node,
            adapters,
            curve,
            stretch,
        )

    def between_nodes_at(self, share: float) -> Wires:
        """The same wires, with only this share of what collectives usually reach between nodes."""
        return self if share == 1.0 else replace(self, network=self.network * share)

    def members(self, ranks: Numbers, stride: Numbers) -> np.ndarray:
        """How many ranks of a group share a node: ranks follow each other at distance `stride`."""
        return np.minimum(self.per_node // np.minimum(stride, self.per_node), ranks)

    def seconds(self, collective: str, num_bytes: Numbers, ranks: Numbers, stride: Numbers = 1) -> np.ndarray:
        """Seconds of a collective of `ranks` ranks at distance `stride` on `num_bytes`; 0 for one rank."""
        n, size = np.asarray(ranks), np.asarray(num_bytes, dtype=float)
        if n.max() <= 1:
            return np.zeros(np.broadcast_shapes(n.shape, size.shape))
        here = self.members(n, stride)
        if self.curve is not None and collective in self.curve.seconds:
            return self._measured(collective, size, n, here)
        if collective == "all_to_all":
            moving = self._all_to_all(size, n, here)
        else:
            crossing = self._crossing(collective, size, n, here)
            moving = np.maximum(wire_bytes(collective, size, n) / self.link, crossing)
        return np.where(n > 1, self.latency(collective, n, here) + moving, 0.0)

    def summed_seconds(
        self, num_bytes: Numbers, ranks: Numbers, cut: Numbers
    ) -> tuple[np.ndarray, np.ndarray]:
        """Time to sum the ranks' tensors, and then to have the sum where the next product wants it.

        One all-reduce, and nothing; where activations are `cut` along the sequence a reduce-scatter and,
        after what each rank does with its own tokens, an all-gather: the same bytes, but nothing that the
        switch can add on the way (NVLink SHARP).
        """
        cut = np.asarray(cut)
        if not cut.any():
            whole = self.seconds("all_reduce", num_bytes, ranks)
            return whole, np.zeros_like(whole)
        half, after = (self.seconds(name, num_bytes, ranks) for name in ("reduce_scatter", "all_gather"))
        if cut.all():
            return half, after
        return np.where(cut, half, self.seconds("all_reduce", num_bytes, ranks)), np.where(cut, after, 0.0)

    def _measured(self, collective: str, size: np.ndarray, n: np.ndarray, here: np.ndarray) -> np.ndarray:
        """Within a node what was measured; across nodes the slower of link and network, and the hops between.

        In a ring over nodes the members of one node pass on as many bytes each as all others: as a group of
        their own would with a tensor that is larger by the shares of both rings.
        """
        assert self.curve is not None
        if collective == "all_to_all":
            inside, network = size * here / n, size * (n - here) / n / self.network
        else:
            inside = size * bus_share(n) / bus_share(np.maximum(here, 2))
            network = self._crossing(collective, size, n, here)
        link = self.curve.time(collective, inside * self.stretch, here)
        start = np.where(here > 1, 0.0, self.link_seconds)
        return np.where(n > 1, np.maximum(link, network + start) + self._hops(collective, n, here), 0.0)

    def _crossing(self, collective: str, size: np.ndarray, n: np.ndarray, here: np.ndarray) -> np.ndarray:
        """Seconds in which a node's adapters send what leaves it; 0 for a group within one."""
        if not (here < n).any():
            return np.zeros(np.broadcast_shapes(size.shape, n.shape))
        used = np.minimum(here, self.adapters)
        sent, step = wire_bytes(collective, size, n) / used, size / np.maximum(n, 1) / used
        return np.where(here < n, sent / (self.network * network_share(step)), 0.0)

    def rate(self, ranks: Numbers, here: Numbers) -> np.ndarray:
        """Bytes/s of a ring of `ranks` ranks, `here` of them on each node."""
        network = np.minimum(np.minimum(here, self.adapters) * self.network, self.link)
        return np.where(np.asarray(here) >= np.asarray(ranks), self.link, network)

    def load(self, ranks: Numbers, stride: Numbers) -> np.ndarray:
        """How much of a device a collective occupies, from 0 to 1: its rate as a share of the link's."""
        rate = self.rate(ranks, self.members(ranks, stride))
        return rate / self.link if np.isfinite(self.link) else np.ones_like(rate)  # a node of one has no link

    def latency(self, collective: str, ranks: Numbers, here: Numbers) -> np.ndarray:
        """Seconds before the first byte is through."""
        rounds = 2 if collective == "all_reduce" else 1
        inside = self.link_seconds + self.hop_seconds * rounds * (np.asarray(here) - 1)
        return inside + self._hops(collective, ranks, here)

    def _hops(self, collective: str, ranks: Numbers, here: Numbers) -> np.ndarray:
        """Seconds from node to node; what was timed is an all-reduce, a round there and one back."""
        rounds = 2 if collective == "all_reduce" else 1
        nodes = np.maximum(np.asarray(ranks) / here, 1.0)
        if nodes.max() <= 1:
            return np.zeros(nodes.shape)
        return np.where(nodes > 1, rounds / 2 * network_start(nodes), 0.0)

    def dispatch_seconds(
        self,
        tokens: Numbers,
        token_bytes: Numbers,
        copies: int,
        ranks: Numbers,
        dispatcher: str = "tokens",
    ) -> np.ndarray:
        """Sending each of a rank's tokens to `copies` experts spread over `ranks` neighbouring ranks, or
        taking them back.

        An all-to-all carries a copy for each expert. DeepSeek's and NVIDIA's dispatchers ("tokens") carry one
        to each rank that holds one of the token's experts, and over the network one to each *node*, where it
        is copied on (arXiv 2412.19437, section 3.2.2; arXiv 2603.07685, section 4.2.2). How fast either is on
        a link was measured (`dispatch_rate`).
        """
        n, size = np.asarray(ranks, float), np.asarray(tokens) * token_bytes
        if n.max() <= 1:
            return np.zeros(np.broadcast_shapes(n.shape, size.shape))
        here = self.members(n, 1)
        nodes = np.maximum(n / here, 1.0)
        device = self.curve.device if self.curve else ""
        rate, start = np.asarray(self.link), self.latency("all_to_all", n, here)
        if device in TIMED_DISPATCH:  # what was timed holds all starts but the network's
            rate = dispatch_rate(device, dispatcher, here) / self.stretch
            start = self._hops("all_to_all", n, here)
        moving = np.maximum(
            size * sent_copies(dispatcher, copies, here) / rate,
            size * sent_copies(dispatcher, copies, nodes) / self.network,
        )
        return np.where(n > 1, start + moving, 0.0)

    def _all_to_all(self, size: np.ndarray, n: np.ndarray, here: np.ndarray) -> np.ndarray:
        """Each rank keeps 1/n, sends (here-1)/n over the link, and the rest over its adapter meanwhile."""
        return np.maximum(size * (here - 1) / n / self.link, size * (n - here) / n / self.network)
