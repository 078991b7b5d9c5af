"""``workshop monitor``: a line for each sample, and a log file."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from workshop.cli.counts import positive
from workshop.facts.units import format_bytes
from workshop.launch.processes import ProcessId
from workshop.measure.monitor import Monitor
from workshop.measure.monitor_record import Sample


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop monitor``."""
    parser.description = (
        "Print a line for each sample until Ctrl-C or --seconds, and with --log write every number as JSON "
        "lines. Without an NVIDIA driver it says so once and shows the CPU. Exit code 0: done; 2: a wrong "
        "call."
    )
    parser.add_argument("--seconds", type=positive, metavar="S", help="end after so long (default: Ctrl-C)")
    parser.add_argument(
        "--interval", type=positive, default=1.0, metavar="S", help="seconds between samples (default: 1)"
    )
    parser.add_argument("--log", type=Path, metavar="FILE", help="write JSON lines there; FILE must be new")
    parser.add_argument(
        "--pcie", action="store_true", help="PCIe traffic too: the driver needs 40 ms for each GPU"
    )
    parser.add_argument("--pid", type=int, metavar="P", help="watch this process and those it has started")


def run(options: argparse.Namespace) -> int:
    """Print until the time is up or Ctrl-C."""
    if options.pid is not None and ProcessId.of(options.pid) is None:
        raise ValueError(f"--pid {options.pid}: there is no such process")
    shown_notes: set[str] = set()

    def show(sample: Sample) -> None:
        for note in monitor.notes:
            if note not in shown_notes:
                shown_notes.add(note)
                print(note, flush=True)
        print(line(sample), flush=True)

    monitor = Monitor(
        options.interval, log=options.log, pid=options.pid, pcie=options.pcie, on_sample=show, keep=3600
    )
    with monitor:
        try:
            threading.Event().wait(options.seconds)
        except KeyboardInterrupt:
            print()
    print(monitor.summary())
    print(f"the monitor itself took {1e3 * monitor.cost_seconds:.1f} ms of CPU for each sample")
    return 0


def line(sample: Sample) -> str:
    """One sample in one line."""
    cpu = sample.cpu
    got, sent = (sum(rates[i] for rates in cpu.network.values()) for i in (0, 1))
    parts = [
        f"{sample.seconds:7.1f} s",
        f"cores {sum(cpu.cores_busy):5.2f} of {len(cpu.cores_busy)}",
        f"memory {format_bytes(cpu.memory_used_bytes)} of {format_bytes(cpu.memory_total_bytes)}",
        f"network {format_bytes(got)}/s in, {format_bytes(sent)}/s out",
        f"disk {format_bytes(sum(cpu.disk))}/s",
    ]
    for gpu in sample.gpus:
        readings = [
            "" if gpu.busy is None else f"{gpu.busy:.0%}",
            "" if gpu.memory_used_bytes is None else format_bytes(gpu.memory_used_bytes),
            "" if gpu.power_watts is None else f"{gpu.power_watts:.0f} W",
            "" if gpu.temperature_celsius is None else f"{gpu.temperature_celsius} °C",
            "" if gpu.sm_clock_mhz is None else f"{gpu.sm_clock_mhz} MHz",
            "" if not gpu.slowed else f"slowed by {', '.join(gpu.slowed)}",
        ]
        parts.append(f"GPU {gpu.index} {' '.join(filter(None, readings)) or 'tells nothing'}")
    return "  ".join(parts)
