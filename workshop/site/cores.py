"""Which cores are next to which GPU, as the kernel tells it, and which of them this process may use.

A node with several sockets has memory and PCI roads of its own on each. A rank that runs on the far socket
copies to its GPU over the link between sockets, slower and with more noise; so a centre binds each rank to
the cores next to its GPU. A CPU list is written as ``taskset --cpu-list`` takes it: ``0-7,16``.

Sources: Linux, "Documentation/ABI/testing/sysfs-bus-pci" (``local_cpulist``, ``numa_node``);
``sched_setaffinity(2)``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PCI = Path("/sys/bus/pci/devices")
NUMA = Path("/sys/devices/system/node")
GPU_CPUS = "WORKSHOP_GPU_CPUS"  # cores next to each of a launch's GPUs, in the order of its local ranks
_VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
_DISPLAY, _ACCELERATOR = "0x03", "0x12"  # PCI classes of what computes


@dataclass(frozen=True)
class GpuPlace:
    """A GPU by its address on the PCI bus, its NUMA node (-1: none told) and the cores next to it."""

    address: str
    maker: str
    numa_node: int
    cores: str


def core_numbers(text: str) -> set[int]:
    """``0-3,8,10-14:2`` as numbers. Raises ValueError for what is no such list."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        numbers.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return numbers


def core_list(numbers: set[int]) -> str:
    """Numbers as a list that begins again where one is missing: ``0-3,8``."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def gpu_places() -> list[GpuPlace]:
    """NVIDIA's and AMD's GPUs of this machine in the order of the PCI bus; [] where the kernel shows none."""
    places = []
    for device in sorted(PCI.glob("*")):
        maker = _VENDORS.get(_text(device / "vendor"), "")
        if maker and _text(device / "class")[:4] in (_DISPLAY, _ACCELERATOR):
            node = _text(device / "numa_node")
            places.append(GpuPlace(device.name, maker, int(node or -1), _text(device / "local_cpulist")))
    return places


def numa_nodes() -> dict[int, str]:
    """Cores of each NUMA node of this machine."""
    cores = {int(path.name[4:]): _text(path / "cpulist") for path in NUMA.glob("node[0-9]*")}
    return dict(sorted(cores.items()))


def bind_to(cores: str) -> str:
    """Bind this process to the cores; "" where that is done, else one sentence of why it runs unbound.

    A job that has only a part of the node may not use the rest of it: the kernel refuses.
    """
    wanted = core_numbers(cores) & os.sched_getaffinity(0)
    if not wanted:
        has = core_list(os.sched_getaffinity(0))
        return f"not bound to the cores next to its GPU, {cores}: this job has {has}"
    os.sched_setaffinity(0, wanted)
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # not told on this machine
        return ""
