"""A thousand parallel cells from each of two notebooks side by side: does anything grow?

    python benchmarks/endurance.py                            the table
    python benchmarks/endurance.py --cells 200                fewer cells
    python benchmarks/endurance.py --json endurance.json      also as data

Each notebook is a real kernel with two ranks that stay. Every 25th cell raises on one rank, so that the
group is cut and made anew; every 40th is a `%%torchrun`. All processes of a notebook (kernel, supervisor,
fork server, ranks) are counted together: resident memory (``VmRSS``), open descriptors, threads, processes,
and files: in the session's directory, and in /dev/shm, where those of every program are (nothing else may
run). A cut group keeps its threads and sockets until Python's collector comes by, a dozen cuts later: so
ranks collect before they are counted. What is compared is the least of many counts: of a sixth of the cells
after the first third, when caches are warm and the directories of past launches have reached their number;
and of the last sixth. What leaks raises its least.

The exit code is 1 when anything grew by more than a tenth.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # `python benchmarks/endurance.py` puts only benchmarks/ there
    sys.path.insert(0, str(ROOT))

from benchmarks import machine  # noqa: E402 - needs the line above
from benchmarks.faults.orphans import marked_processes  # noqa: E402
from benchmarks.notebook_clock import CellFailed, Notebook, notebook  # noqa: E402

CELL = "%%ranks\nx = torch.ones(1000) * rank\ndist.all_reduce(x)\nprint(x[0].item())"
FAILS = "%%ranks\nif rank == 1: raise ValueError('no luck')\ndist.barrier()"
COLLECT = "%%ranks\nimport gc\n_ = gc.collect()"
FRESH = "%%torchrun -n 2\nimport torch.distributed as dist\ndist.init_process_group(); dist.barrier()"
WHERE = "from workshop.launch import Session; print(Session.get().directory)"
LOOKED_AT = ("memory_bytes", "descriptors", "threads", "processes", "files")
PACKAGES = ("torch", "ipykernel", "jupyter_client", "pyzmq")
MAY_GROW = 1.1


def count(mark: str, session: Path) -> dict[str, int]:
    """What all processes of one notebook hold now."""
    held = {"memory_bytes": 0, "descriptors": 0, "threads": 0, "processes": 0}
    for process in marked_processes(mark):
        with contextlib.suppress(OSError):  # ended meanwhile
            folder = Path(f"/proc/{process.pid}")
            status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
            held["memory_bytes"] += int(status.get("VmRSS", "0 kB").split()[0]) * 1024
            held["threads"] += int(status["Threads"])
            held["descriptors"] += len(os.listdir(folder / "fd"))
            held["processes"] += 1
    files = sum(len(files) for top in (session, "/dev/shm") for _folder, _folders, files in os.walk(top))
    return {**held, "files": files}


def run_cells(cells: Notebook, mark: str, number: int) -> dict[str, dict[str, int]]:
    """Run them all; the least that was held in the sixth after the first third, and in the last sixth."""
    cells.run("%load_ext workshop\n%ranks start -n 2")
    cells.run(WHERE)
    session = Path(cells.printed.strip())
    looks: dict[str, list[dict[str, int]]] = {"warm": [], "end": []}
    for done in range(1, number + 1):
        if done % 40 == 0:
            cells.run(FRESH)
        elif done % 25 == 0:
            with contextlib.suppress(CellFailed):
                cells.run(FAILS)
        else:
            cells.run(CELL)
            assert "[ranks 0-1] 1.0" in cells.printed, cells.printed
        warm, late = number // 3 < done <= number // 2, done > number - number // 6
        if done % 7 == 3 and (warm or late):
            cells.run(COLLECT)
            looks["warm" if warm else "end"].append(count(mark, session))
    return {
        when: {what: min(look[what] for look in those) for what in LOOKED_AT} for when, those in looks.items()
    }


def one_notebook(name: str, number: int, held: dict[str, dict[str, dict[str, int]]]) -> None:
    """One kernel from start to end."""
    with tempfile.TemporaryDirectory() as folder, notebook(Path(folder)) as cells:
        held[name] = run_cells(cells, cells.mark, number)


def growth(held: dict[str, dict[str, dict[str, int]]]) -> list[str]:
    """What of a notebook grew by more than a tenth from its warm sixth to its last."""
    return [
        f"{name}: {what}"
        for name, counts in held.items()
        for what, end in counts["end"].items()
        if end > MAY_GROW * counts["warm"][what]
    ]


def main() -> int:
    """Run both, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=1000, help="cells in each notebook")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    args = parser.parse_args()
    began = machine.machine(PACKAGES)
    held: dict[str, dict[str, dict[str, int]]] = {}
    names = ("first notebook", "second notebook")
    threads = [threading.Thread(target=one_notebook, args=(name, args.cells, held)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        for what in held[name]["end"]:
            warm, end = held[name]["warm"][what], held[name]["end"][what]
            print(f"{name:16} {what:13} {warm:>14,} {end:>14,}")
    grown = growth(held)
    print("grew: " + "; ".join(grown) if grown else "nothing grew")
    if args.json:
        command = f"python benchmarks/endurance.py --cells {args.cells}"
        record = {
            "date": str(date.today()),
            "command": command,
            "commit": machine.commit(),
            "machine": began | {"load_average_at_the_end": machine.load_average()},
            "cells": args.cells,
            "held": held,
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return bool(grown)


if __name__ == "__main__":
    sys.exit(main())
