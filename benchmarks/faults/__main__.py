"""The failure lab: break parallel cells in many ways, time the errors, and count what is left.

    python -m benchmarks.faults                      every fault, five times each
    python -m benchmarks.faults --times 1            once each
    python -m benchmarks.faults --only SIGKILL       the faults whose name contains this
    python -m benchmarks.faults --json faults.json   also as data

    python -m benchmarks.faults --json faults.json --go-on --minutes 12

makes the table in parts: it keeps what the file holds, runs what is missing, begins no fault after twelve
minutes, and says how much is left to do. Call it again until nothing is. Or make two at once, the
second ``--from-the-end``, and then

    python -m benchmarks.faults --json faults.json --join one.json two.json

which takes them together, and runs what neither has.

Each line is one fault on one engine: ``%%ranks`` (ranks that stay) or ``%%torchrun`` (fresh ranks). The
seconds run from the first failure (or the end of the time limit, or the stop button) to the error in the
notebook. "goes on" says whether the very same ranks ran the next cell, with a variable from before the
fault and a correct all_reduce. "left" counts processes that should have gone, five seconds later. At the end
nothing may be in /dev/shm that was not there before, so nothing else may run meanwhile. The exit code is 1
when anything was not as promised, 3 when something is left to do.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.faults import FAULTS
from benchmarks.faults.lab import ERROR_WITHIN, Lab, Outcome
from benchmarks.faults.notebook_ends import ENDS, end_notebook
from benchmarks.faults.orphans import wait_until
from benchmarks.faults.table import Row, Table

_HEAD = f"{'fault':52} {'engine':8} {'n':>2} {'median':>7} {'worst':>7}  {'goes on':30} left  said"
Once = Callable[[Lab | None], Outcome]


def main() -> int:
    """Run the lab and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=5, help="how often each fault is run")
    parser.add_argument("--only", default="", help="only faults whose name contains this")
    parser.add_argument("--from-the-end", action="store_true", help="the last fault first")
    parser.add_argument("--json", type=Path, help="write every run to this file")
    parser.add_argument("--go-on", action="store_true", help="keep what the file holds, run what is missing")
    parser.add_argument(
        "--join", type=Path, nargs="+", default=[], metavar="FILE", help="take these together"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no fault after that long")
    args = parser.parse_args()
    if args.go_on and not args.json:
        parser.error("--go-on needs --json FILE: the table to go on with")
    # The stop button is a SIGINT, which a shell has the commands ignore that it starts in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kept = [*args.join, *([args.json] if args.go_on else [])]
    table = Table(args.json, kept, " ".join(["python -m benchmarks.faults", *sys.argv[1:]]))
    wanted = [key for key in everything() if args.only in key[0]]
    if not wanted:
        parser.error(f"no fault's name contains {args.only!r}")
    if args.from_the_end:
        wanted.reverse()
    fill(table, wanted, args.times, time.monotonic() + 60 * args.minutes)
    rows = [table.rows[key] for key in wanted if key in table.rows]
    return summary(table, rows, sum(_missing(table, key, args.times) for key in wanted))


def everything() -> dict[tuple[str, str], Once]:
    """How to run each fault on each engine it is meant for, by fault and engine, in the table's order."""
    return cells() | ends()


def cells() -> dict[tuple[str, str], Once]:
    """The faults of a cell; all share one lab."""
    return {
        (fault.name, engine): partial(Lab.run, fault=fault, engine=engine)
        for fault in FAULTS
        for engine in fault.engines
    }


def ends() -> dict[tuple[str, str], Once]:
    """The ends of a whole notebook: each has a kernel and a temporary directory of its own."""
    return {(name, end.engine): partial(_end, name=name) for name, end in ENDS.items()}


def _end(_lab: Lab | None, name: str) -> Outcome:
    return end_notebook(name)


def fill(table: Table, wanted: list[tuple[str, str]], times: int, until: float) -> None:
    """Run what is missing until the moment ``until``; see what the session of the cells leaves."""
    print(_HEAD, flush=True)
    left: list[str] = []
    before = shared_memory()
    if any(_missing(table, key, times) for key in wanted if key in cells()):
        lab = Lab()
        try:
            _repeat(table, wanted, cells(), lab, times, until)
        finally:
            left = lab.close()
    _repeat(table, wanted, ends(), None, times, until)
    wait_until(lambda: shared_memory() - before, ERROR_WITHIN)
    if names := sorted(shared_memory() - before):
        left = [*left, f"{len(names)} files in /dev/shm left: {names}"]
    table.close(left)


def shared_memory() -> set[str]:
    """Names in /dev/shm, those of every program on the machine."""
    return set(os.listdir("/dev/shm"))


def _repeat(
    table: Table,
    wanted: list[tuple[str, str]],
    each: dict[tuple[str, str], Once],
    lab: Lab | None,
    times: int,
    until: float,
) -> None:
    for key in wanted:
        missing = _missing(table, key, times) if key in each else 0
        if missing and time.monotonic() < until:
            for _ in range(missing):
                table.row(*key).add(each[key](lab))
            table.write()
            show(table.row(*key))


def _missing(table: Table, key: tuple[str, str], times: int) -> int:
    return max(0, times - len(table.rows[key].left)) if key in table.rows else times


def show(row: Row) -> None:
    """Print one fault's line."""
    seconds = [value for value in row.seconds if value is not None]
    timing = f"{statistics.median(seconds):6.2f}s {max(seconds):6.2f}s" if seconds else f"{'':15}"
    print(
        f"{row.fault:52} {row.engine:8} {len(row.left):2} {timing}  {row.goes_on:30} "
        f"{max(row.left):4}  {row.said}",
        flush=True,
    )
    for problem in sorted({problem for problems in row.problems for problem in problems}):
        print(f"    NOT AS PROMISED: {problem}", flush=True)


def summary(table: Table, rows: list[Row], missing: int) -> int:
    """The last lines; returns the exit code."""
    problems = [problems for row in rows for problems in row.problems if problems]
    worst = max((value for row in rows for value in row.seconds if value is not None), default=0.0)
    print(
        f"\n{len({row.fault for row in rows})} faults, {sum(len(row.left) for row in rows)} runs, "
        f"{table.seconds():.0f} s for the whole table; slowest error after {worst:.2f} s; "
        f"{sum('hung' in word for words in problems for word in words)} hung; "
        f"{sum(sum(row.left) for row in rows)} processes left; "
        f"after the end of the session: {'; '.join(table.left()) or 'no process, socket or file left'}"
    )
    print(f"{len(problems)} runs not as promised" if problems else "all as promised")
    if missing:
        print(f"{missing} runs are left to do: the same command with --go-on and --json goes on")
    return 1 if problems or table.left() else 3 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
