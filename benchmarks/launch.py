"""How long parallel cells take, beside torchrun, nbdistributed, ipyparallel and Monarch, in one run.

    python benchmarks/launch.py                     the table
    python benchmarks/launch.py --json launch.json  also as data
    python benchmarks/launch.py --times 20          fewer cells (100 by default)

A cell's round trip is taken in three places: around the call `Ranks.run`; around the cell magic, inside a
real kernel; and from outside, from sending the cell to the kernel's reply, where Jupyter's own part is in it:
the message there, the kernel's turn, and the reply, which is what an empty cell takes ("jupyters_own_part" in
the JSON). The last two are compared with the others', taken in the same way. Starts and launches are taken
on a warm machine (files in the disk cache) after one that does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # `python benchmarks/launch.py` puts only benchmarks/ there
    sys.path.insert(0, str(ROOT))

from benchmarks import baselines  # noqa: E402 - needs the line above
from benchmarks.machine import commit, load_average, machine, version  # noqa: E402
from benchmarks.notebook_clock import notebook, spread  # noqa: E402
from workshop import launch  # noqa: E402

PROGRAM = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1000)
dist.all_reduce(x)
print(x[0].item())
dist.destroy_process_group()
"""
RECORD = ROOT / "data" / "measurements" / "launch.json"
BASELINES = {
    "nbdistributed": baselines.nbdistributed,
    "ipyparallel": baselines.ipyparallel,
    "torchmonarch": baselines.torchmonarch,
}
IMPORT = """
import sys, time, IPython
from IPython.core.interactiveshell import InteractiveShell
start = time.perf_counter(); import workshop; imported = time.perf_counter() - start
assert "torch" not in sys.modules
print(imported)
"""


def import_seconds(times: int = 7) -> dict[str, float]:
    """What `import workshop` adds to an interpreter that has imported IPython."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = [
        subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True, env=env)
        for _ in range(times + 1)
    ]
    return spread([float(done.stdout) for done in run[1:]])


def cells_by_call(world_sizes: list[int], times: int) -> dict[str, Any]:
    """Start of ranks with the engine warm, and `Ranks.run` on them."""
    launch.Session.get().wait_ready()
    results = {}
    for n in world_sizes:
        starts, seconds = [], []
        for _ in range(4):
            started = time.perf_counter()
            ranks = launch.Ranks(n)
            starts.append(time.perf_counter() - started)
            ranks.stop()
        ranks = launch.Ranks(n)
        for _ in range(times + 2):
            started = time.perf_counter()
            ranks.run(baselines.CELL)
            seconds.append(time.perf_counter() - started)
        ranks.stop()
        results[str(n)] = {"start": spread(starts[1:]), "cell": spread(seconds[2:])}
    return results


def cells_in_a_notebook(world_size: int, times: int, directory: Path) -> dict[str, Any]:
    """The same as a notebook sees it; ``cold``: from `%load_ext` in a new kernel to the first cell's end."""
    with notebook(directory) as cells:
        empty = spread(cells.time_cells("pass", times))
        load = cells.run("%load_ext workshop")
        cold = load + cells.run(f"%%ranks -n {world_size}\n{baselines.CELL}")
        cell = spread(cells.time_cells(f"%%ranks\n{baselines.CELL}", times))
        magic = spread(cells.time_magic("ranks", baselines.CELL, times))
        cells.run("%ranks stop")
        start = cells.run(f"%ranks start -n {world_size}")
        return {
            "empty_cell": empty,
            "load": load,
            "cold": cold,
            "start": start,
            "cell": cell,
            "magic": magic,
        }


def launches(world_size: int, times: int, directory: Path) -> dict[str, Any]:
    """`%%torchrun` in a notebook, after the first."""
    with notebook(directory) as cells:
        cells.run("%load_ext workshop")
        source = f"%%torchrun -n {world_size}\n{PROGRAM}"
        first = cells.run(source)
        assert f"[ranks 0-{world_size - 1}] {float(world_size)}" in cells.printed, cells.printed
        return {"first": first, "next": spread([cells.run(source) for _ in range(times)])}


def measure(times: int, directory: Path) -> dict[str, Any]:
    """Everything, in the order of the table."""
    program = directory / "program.py"
    program.write_text(PROGRAM)
    results: dict[str, Any] = {
        "import_workshop": import_seconds(),
        "ranks_by_call": cells_by_call([2, 4, 8], times),
        "ranks_in_notebook": cells_in_a_notebook(2, times, directory),
        "torchrun_cell": launches(2, 10, directory),
        "torchrun": baselines.torchrun(program, 2, 5),
    }
    launch.Session.get().close()
    for name, measure_baseline in BASELINES.items():
        if version(name) is None:
            print(f"{name} is not installed (extra `bench`): left out", flush=True)
        else:
            results[name] = measure_baseline(2, times, directory)
    return results


def targets(results: dict[str, Any]) -> list[tuple[str, float, str, float, bool]]:
    """(what, value, unit, target, met) for each target that can be judged."""
    two, in_notebook = results["ranks_by_call"]["2"], results["ranks_in_notebook"]
    rows = [
        ("%%ranks, 2 ranks, a cell by call", two["cell"]["median"] * 1e3, "ms", 3.0, True),
        ("%%ranks, 2 ranks, the magic in a notebook", in_notebook["magic"]["median"] * 1e3, "ms", 3.0, True),
        ("import workshop over IPython", results["import_workshop"]["median"] * 1e3, "ms", 50.0, True),
    ]
    if "nbdistributed" in results:
        for key, what in (("magic", "the magic alone"), ("cell", "with Jupyter's own part")):
            ratio = results["nbdistributed"][key]["median"] / in_notebook[key]["median"]
            rows.append((f"a cell, times faster than nbdistributed, {what}", ratio, "x", 15.0, False))
    if "ipyparallel" in results:
        ratio = two["start"]["median"] / results["ipyparallel"]["start"]
        rows.append(("start, part of ipyparallel's", ratio, "", 1 / 3, True))
    if "torchmonarch" in results:
        ratio = in_notebook["magic"]["median"] / results["torchmonarch"]["magic"]["median"]
        rows.append(("a cell's magic, times a call of Monarch's", ratio, "x", 4.0, True))
    ratio = results["torchrun"]["median"] / results["torchrun_cell"]["next"]["median"]
    rows.append(("%%torchrun, times faster than torchrun", ratio, "x", 8.0, False))
    return [
        (what, value, unit, target, value <= target if most else value >= target)
        for what, value, unit, target, most in rows
    ]


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """Ours over theirs, of one run: what can be compared between machines. Without whom was not measured."""
    mine, fresh, torchrun = (
        results["ranks_in_notebook"],
        results["torchrun_cell"],
        results["torchrun"]["median"],
    )
    over = {
        "%%torchrun, the next, over torchrun": fresh["next"]["median"] / torchrun,
        "%%torchrun, the first of a notebook, over torchrun": fresh["first"] / torchrun,
        "ranks that stay, from %load_ext, cold, over torchrun": mine["cold"] / torchrun,
    }
    if other := results.get("ipyparallel"):
        over |= {
            "ranks that stay, start, over ipyparallel": mine["start"] / other["start"],
            "%%ranks, a cell, over ipyparallel": mine["cell"]["median"] / other["cell"]["median"],
            "%%ranks, the magic alone, over ipyparallel": mine["magic"]["median"] / other["magic"]["median"],
        }
    return over


def show_ratios(results: dict[str, Any]) -> None:
    """Each ratio beside that of the record."""
    record = json.loads(RECORD.read_text())
    before = ratios(record["results"])
    print(f"ours over theirs, now and in the record of {record['date']} ({record['machine']['cpu']})")
    for what, now in ratios(results).items():
        print(f"  {what:58} {now:9.3f}      record {before.get(what, float('nan')):.3f}")


def show(results: dict[str, Any]) -> None:
    """The table, then the targets."""

    def line(what: str, seconds: float, p95: float | None = None) -> None:
        more = f"   p95 {p95 * 1e3:9.1f} ms" if p95 is not None else ""
        print(f"  {what:58} {seconds * 1e3:9.1f} ms{more}")

    print("ranks that stay, by call")
    for n, one in results["ranks_by_call"].items():
        line(f"{n} ranks: start, engine warm", one["start"]["median"])
        line(f"{n} ranks: a cell", one["cell"]["median"], one["cell"]["p95"])
    print("ranks that stay, 2 ranks, in a notebook")
    mine = results["ranks_in_notebook"]
    line("an empty cell: Jupyter's own part", mine["empty_cell"]["median"], mine["empty_cell"]["p95"])
    line("%load_ext workshop", mine["load"])
    line("new kernel: %load_ext to the end of the first cell, cold", mine["cold"])
    line("%%ranks: a cell", mine["cell"]["median"], mine["cell"]["p95"])
    line("%%ranks: the magic alone, in the kernel", mine["magic"]["median"], mine["magic"]["p95"])
    for name in BASELINES:
        if name in results:
            line(f"{name}: start", results[name]["start"])
            line(f"{name}: a cell", results[name]["cell"]["median"], results[name]["cell"]["p95"])
            line(f"{name}: the magic alone", results[name]["magic"]["median"], results[name]["magic"]["p95"])
    print("fresh ranks, 2 ranks: a group, one all_reduce")
    fresh = results["torchrun_cell"]
    line("%%torchrun, the first of a notebook", fresh["first"])
    line("%%torchrun, the next", fresh["next"]["median"], fresh["next"]["p95"])
    line("torchrun", results["torchrun"]["median"], results["torchrun"]["p95"])
    line("import workshop, over IPython", results["import_workshop"]["median"])
    print("targets (set for two cores of their own)")
    for what, value, unit, target, met in targets(results):
        print(f"  {what:58} {value:9.2f} {unit:2}   target {target:.2f}   {'met' if met else 'MISSED'}")


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=100, help="cells for each round-trip figure")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    args = parser.parse_args()
    before = machine(("torch", "ipykernel", "jupyter_client", "pyzmq", *BASELINES))
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        results = measure(args.times, Path(directory))
    show(results)
    show_ratios(results)
    if args.json:
        record = {
            "date": date.today().isoformat(),
            "command": f"python benchmarks/launch.py --times {args.times} --json {args.json.name}",
            "unit": "seconds",
            "commit": commit(),
            "machine": {**before, "load_average_at_the_end": load_average()},
            "jupyters_own_part": {
                "seconds": results["ranks_in_notebook"]["empty_cell"]["median"],
                "what": "an empty cell, from sending it to the kernel's reply: figures named cell have it in "
                "them, those named magic have not",
            },
            "results": results,
            "ratios": ratios(results),
            "targets": [
                dict(zip(("what", "value", "unit", "target", "met"), row, strict=True))
                for row in targets(results)
            ],
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
