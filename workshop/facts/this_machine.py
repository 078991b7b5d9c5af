"""The machine at hand as a cluster: its processes are the ranks, its memory is shared between them.

What it can do is not in any data sheet, so it is measured: ``calibrate()`` (``workshop.measure``) times
matmuls, memory and gloo's collectives and keeps the result here as a small file. Without it memory can be
predicted and time cannot, and asking for a rate says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workshop.facts.checks import check_keys
from workshop.facts.device import ClusterSpec, DeviceSpec, LinkSpec

NAME = "this-machine"
KEYS = ("peak_flops", "memory_bandwidth", "bytes_per_second", "latency_seconds", "source")


def calibration_path() -> Path:
    """Where the calibration is kept: below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "workshop" / "calibration.json"


def save_calibration(calibration: Mapping[str, Any]) -> Path:
    """Keep what was measured: ``peak_flops`` by format, and bytes and seconds of memory and of gloo."""
    check_keys("calibration", calibration, KEYS)
    path = calibration_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(calibration), indent=2) + "\n", "utf-8")
    return path


def load_calibration() -> dict[str, Any]:
    """What was measured on this machine; empty before the first calibration."""
    path = calibration_path()
    if not path.exists():
        return {}
    calibration = json.loads(path.read_text("utf-8"))
    check_keys(f"calibration {path.name}", calibration, KEYS)
    return calibration


def memory_bytes() -> int:
    """Memory of this machine, as the operating system counts it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def this_machine(num_ranks: int = 1) -> ClusterSpec:
    """The machine at hand with ``num_ranks`` processes on it, all on one node."""
    calibration = load_calibration()
    device = DeviceSpec(
        "cpu",
        memory_bytes(),
        calibration.get("memory_bandwidth", 0.0),
        calibration.get("peak_flops", {}),
        reachable_flops=calibration.get("peak_flops", {}),  # measured, so it is both
        sources={"default": calibration.get("source", "not calibrated"), "memory_bytes": "operating system"},
    )
    link = None
    if "bytes_per_second" in calibration:
        link = LinkSpec(
            "gloo",
            calibration["bytes_per_second"],
            calibration.get("latency_seconds", 0.0),
            "calibrated here",
        )
    return ClusterSpec(NAME, device, num_ranks, 2**30, link, link, shared_memory=True)
