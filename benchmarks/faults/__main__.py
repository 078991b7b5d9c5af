"""The failure lab: break parallel cells in many ways, time the errors, and count what is left.

    python -m benchmarks.faults                      every fault, five times each
    python -m benchmarks.faults --times 1            once each
    python -m benchmarks.faults --only SIGKILL       the faults whose name contains this
    python -m benchmarks.faults --json faults.json   also as data

Each line is one fault on one engine: ``%%ranks`` (ranks that stay) or ``%%torchrun`` (fresh ranks). The
seconds run from the first failure (or the end of the time limit, or the stop button) to the error in the
notebook. "goes on" says whether the very same ranks ran the next cell, with a variable from before the
fault and a correct all_reduce. "left" counts processes that should have gone, five seconds later. The exit
code is 1 when anything was not as promised.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from benchmarks.faults import FAULTS
from benchmarks.faults.lab import Lab, Outcome
from benchmarks.faults.notebook_ends import ENDS, end_notebook

_HEAD = f"{'fault':52} {'engine':8} {'n':>2} {'median':>7} {'worst':>7}  {'goes on':30} left  said"


def main() -> int:
    """Run the lab and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=5, help="how often each fault is run")
    parser.add_argument("--only", default="", help="only faults whose name contains this")
    parser.add_argument("--json", type=Path, help="write every single outcome to this file")
    args = parser.parse_args()
    started = time.monotonic()
    print(_HEAD, flush=True)
    outcomes, left = cells(args.only, args.times)
    for name in ENDS:
        if args.only in name:
            outcomes += repeat(lambda name=name: end_notebook(name), args.times)
    if args.json:
        args.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    return summary(outcomes, left, time.monotonic() - started)


def cells(only: str, times: int) -> tuple[list[Outcome], list[str]]:
    """Every fault of a cell, on each engine it is meant for; then what the closed session left."""
    outcomes: list[Outcome] = []
    lab = Lab()
    try:
        for fault in FAULTS:
            for engine in fault.engines:
                if only in fault.name:
                    outcomes += repeat(lambda f=fault, e=engine: lab.run(f, e), times)
    finally:
        left = lab.close()
    return outcomes, left


def repeat(once: Callable[[], Outcome], times: int) -> list[Outcome]:
    """Run one fault several times and print its line."""
    outcomes = [once() for _ in range(times)]
    seconds = [o.seconds for o in outcomes if o.seconds is not None]
    timing = f"{statistics.median(seconds):6.2f}s {max(seconds):6.2f}s" if seconds else f"{'':15}"
    last = outcomes[-1]
    print(
        f"{last.fault:52} {last.engine:8} {times:2} {timing}  {last.goes_on:30} "
        f"{max(o.left for o in outcomes):4}  {last.said}",
        flush=True,
    )
    for problem in sorted({problem for o in outcomes for problem in o.problems}):
        print(f"    NOT AS PROMISED: {problem}", flush=True)
    return outcomes


def summary(outcomes: list[Outcome], left: list[str], seconds: float) -> int:
    """The last lines; returns the exit code."""
    bad = [o for o in outcomes if o.problems]
    faults = {o.fault for o in outcomes}
    worst = max((o.seconds for o in outcomes if o.seconds is not None), default=0.0)
    print(
        f"\n{len(faults)} faults, {len(outcomes)} runs in {seconds:.0f} s; "
        f"slowest error after {worst:.2f} s; "
        f"{sum('hung' in p for o in outcomes for p in o.problems)} hung; "
        f"{sum(o.left for o in outcomes)} processes left; "
        f"after the end of the session: {'; '.join(left) or 'no process, socket or file left'}"
    )
    print(f"{len(bad)} runs not as promised" if bad else "all as promised")
    return 1 if bad or left or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
