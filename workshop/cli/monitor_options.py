"""The options of ``workshop gpus`` and ``workshop monitor``."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_gpus(commands: argparse._SubParsersAction) -> None:
    """``workshop gpus``."""
    gpus = commands.add_parser(
        "gpus",
        help="say which notebook holds which GPU of this node",
        description="The GPUs of this node, who holds a lease of each and since when, and the processes that "
        "the driver sees on it. Leases of processes that are no more are removed. Exit code 0: the list is "
        "complete; 1: the folder of the leases cannot be read.",
    )
    gpus.add_argument("--json", action="store_true", help="print a JSON list instead of a table")


def add_monitor(commands: argparse._SubParsersAction) -> None:
    """``workshop monitor``."""
    monitor = commands.add_parser(
        "monitor",
        help="say what cores, memory, disk, network and GPUs of this machine do",
        description="Print a line for each sample until Ctrl-C or --seconds, and with --log write every "
        "number as JSON lines. Without an NVIDIA driver it says so once and shows the CPU. Exit code 0: "
        "done; 2: a wrong call.",
    )
    monitor.add_argument("--seconds", type=float, metavar="S", help="end after so long (default: Ctrl-C)")
    monitor.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between samples (default: 1)"
    )
    monitor.add_argument("--log", type=Path, metavar="FILE", help="write JSON lines there; FILE must be new")
    monitor.add_argument(
        "--pcie", action="store_true", help="PCIe traffic too: the driver needs 40 ms for each GPU"
    )
    monitor.add_argument("--pid", type=int, metavar="P", help="watch this process and those it has started")
