"""``workshop gpus``: the GPUs of this node, and which notebook holds which."""

from __future__ import annotations

import argparse
import json
import sys
import time

from workshop.facts.tabular import Table
from workshop.launch.gpus.lease_files import Holder
from workshop.launch.gpus.leases import all_leases
from workshop.launch.gpus.nvml import Gpu, NoDriverError, driver, node_gpus
from workshop.launch.session import EngineError


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop gpus``."""
    parser.description = (
        "The GPUs of this node, who holds a lease of each and since when, and the processes that the "
        "driver sees on it. Leases of processes that are no more are removed. Exit code 0: the list is "
        "complete; 1: the folder of the leases cannot be read."
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")


def run(options: argparse.Namespace) -> int:
    """Print the table; exit code 1 when the leases cannot be read."""
    try:
        held_leases, gpus = all_leases(), node_gpus()
    except EngineError as error:
        print(error)
        return 1
    held = list(held_leases.holders)
    for note in held_leases.notes:
        print(note, file=sys.stderr)
    if options.json:
        print(json.dumps([_plain(gpu, name, holder) for gpu, name, holder in _rows(gpus, held)], indent=2))
        return 0
    if gpus or held:
        print(_table(gpus, held))
    else:
        print(f"no GPUs here: {_why_none()}; nothing is held")
    return 0


def _rows(gpus: list[Gpu], held: list[Holder]) -> list[tuple[Gpu | None, str, Holder | None]]:
    """Every GPU that the driver knows, then leases of names that it does not (MIG parts, other names)."""
    of = {holder.gpu: holder for holder in held}
    known: list[tuple[Gpu | None, str, Holder | None]] = [(gpu, gpu.uuid, of.get(gpu.uuid)) for gpu in gpus]
    there = {gpu.uuid for gpu in gpus}
    return known + [(None, holder.gpu, holder) for holder in held if holder.gpu not in there]


def _plain(gpu: Gpu | None, name: str, holder: Holder | None) -> dict[str, object]:
    return {
        "gpu": name,
        "index": gpu.index if gpu else None,
        "name": gpu.name if gpu else None,
        "processes": list(gpu.processes) if gpu else [],
        "user": holder.user if holder else None,
        "program": holder.program if holder else None,
        "pid": holder.processes[0].pid if holder and holder.processes else None,
        "since": holder.since if holder else None,
    }


def _table(gpus: list[Gpu], held: list[Holder]) -> Table:
    rows = []
    for gpu, name, holder in _rows(gpus, held):
        rows.append(
            [
                str(gpu.index) if gpu else "-",
                f"{gpu.name} {name}" if gpu else name,
                holder.user if holder else "free",
                holder.program if holder else "",
                str(holder.processes[0].pid) if holder and holder.processes else "",
                time.strftime("%d %b %H:%M", time.localtime(holder.since)) if holder else "",
                " ".join(map(str, gpu.processes)) if gpu else "",
            ]
        )
    head = ["number", "GPU", "held by", "program", "process", "since", "processes the driver sees"]
    return Table(head, rows)


def _why_none() -> str:
    try:
        with driver():
            return "the driver knows none"
    except NoDriverError as error:
        return str(error)
