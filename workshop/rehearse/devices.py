"""The roofline of a device of the catalogue, for timing a rehearsal."""

from __future__ import annotations

from workshop.facts import catalogue
from workshop.facts.device import ClusterSpec
from workshop.rehearse.request import Roofline

_TORCH_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}


def roofline_of(device: str, world_size: int) -> Roofline:
    """The roofline of one of ``world_size`` devices in nodes as their vendor builds them.

    Raises:
        ValueError: The device is not known, or its peak, its bandwidth or its link is not.
    """
    cluster = catalogue.cluster(device if world_size == 1 else f"{world_size}x{device}")
    spec = cluster.device
    if not spec.peak_flops or not spec.memory_bandwidth:
        raise ValueError(
            f"device {device}: its peak or its memory bandwidth is not known; calibrate() measures them"
        )
    rates = {_TORCH_NAMES[name]: rate for name, rate in spec.peak_flops.items() if name in _TORCH_NAMES}
    return Roofline(rates, spec.memory_bandwidth, _wire(cluster, world_size))


def _wire(cluster: ClusterSpec, world_size: int) -> float:
    """Bytes per second between the ranks: of the slowest link the whole world must use."""
    if world_size == 1:
        return float("inf")
    ends = (0, world_size - 1)
    return cluster.link(ends).bytes_per_second
