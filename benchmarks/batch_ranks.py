"""What it gives that ranks on cores are of SCHED_BATCH: an all-reduce, and a small step with one, both ways.

    python -m benchmarks.batch_ranks                three launches each way, the table
    python -m benchmarks.batch_ranks --json OUT     also write the rows

Two ranks, the two ways in turns. "Usual" puts a rank back to what a process is by itself, before its group is
made: Gloo's threads take after the thread that starts them. Why it matters is told where ranks are set up
(`workshop.launch.child.rank_script.wait_for_a_turn`). Ratios are of medians in one run.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median

from benchmarks.machine import machine
from workshop import launch

PROGRAM = """
import os, resource, time
import torch
import torch.distributed as dist
from workshop import report

if usual:
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
dist.init_process_group("gloo")
gradients, weights = torch.ones(megabytes << 18), torch.randn(512, 512)

def turn(computes):
    if computes:
        for _ in range(20):
            weights @ weights
    dist.all_reduce(gradients)
    gradients.fill_(1.0)

def measured(computes):
    turn(computes)
    dist.barrier()
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(turns):
        turn(computes)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds / turns, "core_seconds": spent / turns}

report(policy=os.sched_getscheduler(0), alone=measured(False), step=measured(True))
dist.destroy_process_group()
"""
WHAT = {"alone": "an all-reduce", "step": "20 products and an all-reduce"}


@dataclass(frozen=True)
class Row:
    """Medians over launches and ranks, of one turn: seconds, and seconds of a core for each rank."""

    megabytes: int
    what: str
    usual_seconds: float
    batch_seconds: float
    usual_core_seconds: float
    batch_core_seconds: float


def rows(launches: int, megabytes: int, turns: int) -> list[Row]:
    """Both ways in turns, so that what else the machine does meets both."""
    samples: dict[tuple[bool, str, str], list[float]] = {}
    for _ in range(launches):
        for usual in (True, False):
            values = {"usual": usual, "megabytes": megabytes, "turns": turns}
            ranks = launch.torchrun(PROGRAM, 2, variables=values, limits=launch.Limits(timeout=300))
            for rank in (ranks[0], ranks[1]):
                for name in WHAT:
                    for quantity, value in getattr(rank, name).items():
                        samples.setdefault((usual, name, quantity), []).append(value)
    middle = {key: median(values) for key, values in samples.items()}
    return [
        Row(
            megabytes,
            what,
            *(middle[usual, name, q] for q in ("seconds", "core_seconds") for usual in (True, False)),
        )
        for name, what in WHAT.items()
    ]


def table(measured: list[Row]) -> str:
    """The rows, milliseconds and ratios."""
    columns = f"{'usual':>8} {'batch':>8} {'ratio':>6}"
    lines = [f"{'milliseconds':<36} {columns}   of a core: {columns}"]
    for row in measured:
        cells = [f"{row.what}, {row.megabytes} MB".ljust(36)]
        for usual, batch in (
            (row.usual_seconds, row.batch_seconds),
            (row.usual_core_seconds, row.batch_core_seconds),
        ):
            cells.append(f"{1e3 * usual:8.2f} {1e3 * batch:8.2f} {batch / usual:6.2f}")
        lines.append(f"{cells[0]} {cells[1]}              {cells[2]}")
    return "\n".join(lines)


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--launches", type=int, default=3, help="launches each way (default: 3)")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[8, 1], help="summed (default: 8 1)")
    parser.add_argument("--turns", type=int, default=60, help="in each launch (default: 60)")
    parser.add_argument("--json", type=Path, help="write the rows here")
    how = parser.parse_args()
    measured = [row for size in how.megabytes for row in rows(how.launches, size, how.turns)]
    print(table(measured))
    if how.json:
        record = {
            "date": date.today().isoformat(),
            "machine": machine(["torch"]),
            "command": " ".join(["python -m benchmarks.batch_ranks", *sys.argv[1:]]),
            "results": [asdict(row) for row in measured],
        }
        how.json.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
