"""What we train on: devices, links, clusters.

A device is, to first order, three numbers: how many floating-point operations a second it can do (by number
format), how many bytes a second it can move, and how many bytes it holds.  Their quotients decide what a
program is limited by: an operation with fewer FLOPs per byte than ``peak / bandwidth`` waits for memory (the
*roofline*, Williams, Waterman and Patterson 2009).  A link is two numbers, a latency and a rate: ``n`` bytes
take
``latency + n / rate`` (Hockney 1994).

Peaks are **dense** peaks: data sheets like to print the figure with structured sparsity, which is twice as
large. Rates of links are **one way, per device**: "NVLink 900 GB/s" counts both directions.  Memory is what
the driver reports where a message that shows it is at hand, else the sheet's figure; it is always smaller
than the name says.

The figures stand in ``data/devices.toml``, ``data/links.toml`` and ``data/clusters.toml``, each with its
source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from workshop.facts.checks import check_positive, nearest


@dataclass(frozen=True)
class DeviceSpec:
    """One accelerator (or CPU).

    ``peak_flops`` maps a format (``"fp32"``, ``"tf32"``, ``"fp16"``, ``"bf16"``, ``"fp8"``, ``"fp4"``) to
    dense FLOP/s; ``reachable_flops`` to the best rate seen for any matrix shape; ``memory_bandwidth`` is
    bytes per second. ``sources`` maps a field's name to where its figure was read.
    """

    name: str
    memory_bytes: int
    memory_bandwidth: float = 0.0
    peak_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    reachable_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    power_watts: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)

    def peak(self, dtype: str) -> float:
        """Dense peak in FLOP/s for a format; ``ValueError`` where the device has none or it is not known."""
        if dtype not in self.peak_flops:
            raise ValueError(
                f"{self.name} has no known peak for {dtype!r}{nearest(dtype, self.peak_flops)} "
                f"(known: {', '.join(self.peak_flops) or 'none; calibrate() measures them'})"
            )
        return self.peak_flops[dtype]

    def reachable(self, dtype: str) -> float:
        """Best matmul rate seen, in FLOP/s, where one is known; else the peak."""
        return self.reachable_flops.get(dtype) or self.peak(dtype)

    def source(self, what: str) -> str:
        """Where the figure of a field was read; falls back to the entry's general source."""
        return self.sources.get(what, self.sources.get("default", ""))


@dataclass(frozen=True)
class LinkSpec:
    """A link as one device sees it: ``bytes_per_second`` one way, ``latency_seconds`` of one message."""

    name: str
    bytes_per_second: float
    latency_seconds: float = 0.0
    source: str = field(default="", compare=False)

    def seconds(self, num_bytes: float) -> float:
        """Time of one message: ``latency + bytes / rate``."""
        return self.latency_seconds + num_bytes / self.bytes_per_second


@dataclass(frozen=True)
class ClusterSpec:
    """Devices, how many share a node, and the links within and between nodes.

    ``shared_memory``: the ranks are processes of one machine, as many as a layout asks for, and share its
    memory. ``intra`` and ``inter`` are per device.  Ranks fill nodes in order: rank ``r`` is on node ``r //
    devices_per_node``.
    """

    name: str
    device: DeviceSpec
    num_devices: int
    devices_per_node: int = 8
    intra: LinkSpec | None = None
    inter: LinkSpec | None = None
    source: str = field(default="", compare=False)
    shared_memory: bool = False

    def __post_init__(self) -> None:
        check_positive(f"{self.name}: num_devices", self.num_devices)
        check_positive(f"{self.name}: devices_per_node", self.devices_per_node)

    @property
    def num_nodes(self) -> int:
        """Nodes, the last perhaps not full."""
        return -(-self.num_devices // self.devices_per_node)

    def memory_per_rank(self, world_size: int) -> int:
        """Bytes a rank may use."""
        return self.device.memory_bytes // (world_size if self.shared_memory else 1)

    def node_of(self, rank: int) -> int:
        """The node a rank lives on."""
        return rank // self.devices_per_node

    def link(self, ranks: list[int] | tuple[int, ...]) -> LinkSpec:
        """The slowest link a group of ranks must use: within a node when it fits in one, else between
        nodes.
        """
        one_node = len({self.node_of(rank) for rank in ranks}) <= 1
        link = self.intra if one_node else self.inter
        if link is None:
            raise ValueError(f"{self.name}: no link {'within' if one_node else 'between'} nodes is known")
        return link


def split_count(text: str) -> tuple[int, str]:
    """``"64xH100"`` -> ``(64, "H100")``; a name without a count is one device."""
    if not isinstance(text, str):
        raise ValueError(f"a cluster is named by text, such as '8xH100', not {text!r}")
    match = re.fullmatch(r"\s*(\d+)\s*[x×]\s*(.+?)\s*", text)
    return (int(match[1]), match[2]) if match else (1, text.strip())
