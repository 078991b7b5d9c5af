"""(b) Every lesson, executed on this GPU with a time limit each; what it printed is kept.

The notebook of the repository is executed cell by cell (`cli.notebook_run`, as `workshop lab` does), a cell
that carries nbval's tag is compared with what is stored, and the executed notebook goes to ``lessons/``. The
lessons of days 2 and 3 run a second time with ``WORKSHOP_SHARE_GPU=1``: their ranks then share this one GPU
instead of going to the CPU. `show.recorded_run` reads the record.

Lessons that time a GPU run alone, and first. Of the others several run at once, each with leases of its own
and few threads: most of a lesson is Python, and one after the other they would take more than half an hour.
The record of each says how many others there were, for what it times is then told by a busy machine. With
``--together`` all run so: a first look at what is broken; the next start without it runs those alone.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.gpu.stage import Part, Row, Stage, row, without_places
from workshop.launch.gpus.lease_files import FOLDER
from workshop.show.recorded import KEPT_LINES, PLACED, code_digest, lesson_digest

ROOT = Path(__file__).resolve().parents[2]
TAG = "nbval-check-output"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
SECONDS, NEEDED, PATIENCE = 300, 30, 8  # a kernel has 5 s to end
ON_RANKS = ("day2", "day3")
# The lessons that a GPU changes most first.
ALONE = ("12_", "13_", "14_", "16_", "19_", "42_")
CORES = len(os.sched_getaffinity(0))
AT_ONCE = max(1, CORES * 3 // 4)
FIRST = (*ALONE, "22_", "25_", "53_", "56_", "52_", "15_", "17_", "41_", "43_")


def notebooks() -> list[Path]:
    """All lessons, those that a GPU changes most first."""
    pages = sorted((ROOT / "notebooks").glob("day*/*.ipynb"))
    rank = {prefix: place for place, prefix in enumerate(FIRST)}
    return sorted(pages, key=lambda path: (rank.get(path.name[:3], len(FIRST)), path.name))


def run(stage: Stage) -> None:
    """Those that time a GPU, then the others; what time does not allow is left for the next start."""
    paths = stage.sized(notebooks(), notebooks()[-1:])
    if stage.size != "full":
        paths = [path for path in notebooks() if path.name.startswith("00_")]
    if stage.size == "ci":
        paths = []
    plans = [(path, False) for path in paths]
    plans += [(path, True) for path in paths if stage.on_gpu and path.parent.name[:4] in ON_RANKS]
    named = {path.stem + (" --share-gpu" if share else ""): (path, share) for path, share in plans}
    for name in [name for name in named if name.startswith(ALONE) and not stage.together]:
        path, share = named.pop(name)
        alone(stage, path, name, lambda path=path, share=share, name=name: executed(stage, path, share, name))
    several(stage, named)
    if stage.together and stage.record["status"] == "running":
        stage.record["status"] = "done in company"  # the next start has something to do
    if stage.size == "ci":
        stage.part("a notebook of one cell", lambda: one_cell(stage), needs=10)


def to_repeat(stage: Stage, path: Path, name: str, by_itself: bool = False) -> Part | None:
    """The record of a lesson that has another turn; `Stage.part` says when it is kept.

    It has one where the lesson's code has changed since, and, by_itself, where others ran beside it.
    """
    earlier: Part = stage.record["parts"].get(name, {})
    rows = earlier.get("rows") or [{}]
    first, last = rows[0], rows[-1]
    changed = first.get("code", "") not in ("", lesson_digest(path))
    beside = bool(by_itself and last.get("others"))
    if earlier.get("status") != "done" or earlier.get("alone") == "ended us" or not (changed or beside):
        return None
    return {**earlier, "outdated": True} if changed else earlier


def alone(stage: Stage, path: Path, name: str, work: Callable[[], list[Row]]) -> None:
    """Run a lesson that times a GPU, also where an earlier record tells of a run in company."""
    earlier = to_repeat(stage, path, name, by_itself=True)
    took = earlier["rows"][-1]["measured"] if earlier else 0.0
    stage.part(name, work, max(NEEDED, 1.5 * took), earlier=earlier)


def several(stage: Stage, named: dict[str, tuple[Path, bool]]) -> None:
    """Lessons side by side, each written down by this thread when it has ended.

    What took longest comes first, after what nobody knows of: a long one begun last would run on by itself.
    """

    def work(name: str, path: Path, share: bool) -> list[Row]:
        if stage.left() < NEEDED:
            raise _NotBegun
        return executed(stage, path, share, name, AT_ONCE - 1)

    earlier = {name: to_repeat(stage, path, name) for name, (path, _) in named.items()}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        to_come = [name for name in named if earlier[name] or not stage.is_settled(name)]
        to_come.sort(key=lambda name: -seconds_it_took(earlier[name]))
        begun = {pool.submit(work, name, *named[name]): name for name in to_come}
        for future in as_completed(begun):
            late = isinstance(future.exception(), _NotBegun)
            needs = math.inf if late else 0.0
            stage.part(begun[future], future.result, needs, earlier=earlier[begun[future]])


def seconds_it_took(earlier: Part | None) -> float:
    """What a lesson took the last time; without an end that time, more than any."""
    return earlier["rows"][-1]["measured"] if earlier else math.inf


class _NotBegun(Exception):
    """There was no time for this lesson."""


def executed(stage: Stage, path: Path, share: bool, name: str, others: int = 0) -> list[Row]:
    """Execute a lesson in a process of its own, whose group is ended when its time is up.

    others: lessons that may run beside it.
    """
    kept = stage.folder / "lessons" / f"{name.replace(' ', '')}.ipynb"
    kept.parent.mkdir(parents=True, exist_ok=True)
    limit = min(SECONDS, stage.left() - 5 - PATIENCE)
    command = [sys.executable, "-m", "benchmarks.gpu.lessons", str(path), str(kept)]
    few = {"OMP_NUM_THREADS": str(max(1, CORES // AT_ONCE))} if others else {}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as leases, subprocess.Popen(
        command, cwd=ROOT, start_new_session=True, text=True,
        env={**os.environ, **few, "WORKSHOP_SHARE_GPU": "1" if share else "", FOLDER: leases},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as child:  # fmt: skip
        try:
            _, errors = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            child.terminate()  # it writes what it has
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(PATIENCE)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            raise TimeoutError(f"it had not ended after {limit:.0f} s") from None
    if child.returncode:
        raise RuntimeError(COLOURS.sub("", errors).strip()[-2000:])
    took = row("a lesson", time.perf_counter() - began, "s", others=others)
    return [*kept_outputs(path, kept), took]


def kept_outputs(stored: Path, executed: Path) -> list[Row]:
    """The text of every cell, and whether the tagged ones read as they do in the repository."""
    import nbformat

    new, old = (nbformat.read(path, as_version=4) for path in (executed, stored))
    before = {cell.get("id"): compared(text_of(cell)) for cell in old.cells if cell.cell_type == "code"}
    other = []
    cells, sources = {}, {}
    for cell in new.cells:
        if cell.cell_type != "code":
            continue
        printed = text_of(cell)
        if printed:
            cells[cell.get("id")], sources[cell.get("id")] = printed, code_digest(cell.source)
        if TAG in cell.metadata.get("tags", []) and compared(printed) != before.get(cell.get("id"), ""):
            other.append(cell.get("id"))
    more = {"cells": cells, "sources": sources, "other": other, "code": lesson_digest(stored)}
    return [row("cells that read otherwise", len(other), "cells", 0, **more)]


def compared(text: str) -> str:
    """A cell's text without the line that says which devices its ranks are on."""
    lines = text.strip().splitlines()
    return "\n".join(line for line in lines if not PLACED.match(line))


def text_of(cell: Any) -> str:
    """What a cell printed, cut to so many lines, without colours."""
    parts = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            parts.append(output.text)
        elif output.output_type in ("execute_result", "display_data"):
            parts.append(output.data.get("text/plain", "") + "\n")
    lines = COLOURS.sub("", "".join(parts)).splitlines()
    return "\n".join(lines[:KEPT_LINES])


def one_cell(stage: Stage) -> list[Row]:
    """What the smallest walk executes instead of a lesson."""
    import nbformat

    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("print(6 * 7)", metadata={"tags": [TAG]})]
    )
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder, "stored.ipynb")
        done = copy.deepcopy(notebook)
        done.cells[0].outputs = [nbformat.v4.new_output("stream", text="42\n")]
        nbformat.write(done, stored)
        return executed(stage, stored, False, "one cell")


def main() -> None:
    """The process of one lesson: execute, write what there is, and fail as the lesson fails."""
    import nbformat

    from workshop.cli.notebook_run import run_notebook

    source, target = map(Path, sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    notebook = nbformat.read(source, as_version=4)
    for cell in notebook.cells:  # what is not reached shall not show what the page says
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            run_notebook(notebook, Path(folder), seconds=SECONDS)
    finally:
        target.write_text(without_places(nbformat.writes(notebook)), "utf-8")
        print(f"{time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
