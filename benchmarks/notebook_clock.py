"""A notebook with a stop watch: cells run in a real kernel, timed from the outside as a user would."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

from benchmarks.faults.orphans import MARK, marked_processes
from workshop.launch.processes import end_all

ROOT = Path(__file__).resolve().parent.parent


# A line magic, because nbdistributed sends every cell without one to its workers.
_TIMED = """
def timed(line):
    import json, time
    magic, times, body = line.split(maxsplit=2)
    shell, seconds = get_ipython(), []
    for _ in range(int(times)):
        started = time.perf_counter()
        shell.run_cell_magic(magic, "", body)
        seconds.append(time.perf_counter() - started)
    print("SECONDS", json.dumps(seconds))
get_ipython().register_magic_function(timed, "line", "timed")
"""


class CellFailed(RuntimeError):
    """A cell of the benchmark raised."""


class Notebook:
    """One kernel; `run` returns the seconds from sending a cell to its reply.

    mark: the value of the variable by which its processes are found (`faults.orphans`).
    """

    def __init__(self, client: Any, mark: str = ""):
        self.client = client
        self.mark = mark
        self.printed = ""

    def run(self, code: str, timeout: float = 120.0) -> float:
        """Run one cell to its end. What it printed is in ``printed``."""
        texts: list[str] = []

        def keep(message: dict[str, Any]) -> None:
            content = message["content"]
            texts.append(content.get("text") or content.get("data", {}).get("text/plain", ""))

        started = time.perf_counter()
        reply = self.client.execute_interactive(code, timeout=timeout, output_hook=keep)
        seconds = time.perf_counter() - started
        self.printed = "".join(texts)
        if reply["content"]["status"] != "ok":
            raise CellFailed(f"{code!r}: {reply['content'].get('ename')}: {reply['content'].get('evalue')}")
        return seconds

    def time_cells(self, code: str, times: int) -> list[float]:
        """The same cell several times, after two that do not count."""
        return [self.run(code) for _ in range(times + 2)][2:]

    def time_magic(self, magic: str, body: str, times: int) -> list[float]:
        """The cell magic called inside the kernel: without Jupyter's own way there and back."""
        self.run(f"%timed {magic} {times + 2} {body}")
        return json.loads(self.printed.partition("SECONDS ")[2].partition("]")[0] + "]")[2:]


@contextlib.contextmanager
def notebook(directory: Path, path_first: Path | None = None) -> Iterator[Notebook]:
    """A fresh kernel; when the block is left, every process it has started is ended, by number.

    path_first: a directory that comes first on PATH in this kernel.
    """
    mark = uuid.uuid4().hex
    own = str(Path(sys.executable).parent)  # as in an activated environment: some start "python" by name
    path = os.pathsep.join(filter(None, [str(path_first or ""), own, os.environ.get("PATH", "")]))
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", MARK: mark}
    manager = KernelManager(kernel_name="python3")
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    manager.start_kernel(env=env, cwd=str(directory), **silent)
    client: Any = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        cells = Notebook(client, mark)
        cells.run(_TIMED)
        yield cells
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        end_all(marked_processes(mark), patience=1.0)


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median and 95th percentile, with the number of measurements."""
    ordered = sorted(seconds)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    return {"median": statistics.median(ordered), "p95": p95, "n": len(ordered)}
