"""The end of a whole notebook: a real kernel that is killed, restarted or shut down with ranks at work.

The kernel is started as a Jupyter server starts it (`jupyter_client.KernelManager`). It has a set of staying
ranks, one of which has started a subprocess; then a parallel cell runs that would never end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.manager import KernelManager

from benchmarks.faults import lab
from benchmarks.faults.lab import Outcome
from benchmarks.faults.orphans import MARK, entries_below, marked_processes, sockets_below, wait_until

START = "%load_ext workshop\n%ranks start -n 2"
CHILD = "%%ranks\nimport subprocess, time\nif rank == 0: subprocess.Popen(['sleep', '1000'])"
ENDLESS = {
    "ranks": "%%ranks --timeout 600\nprint('at work')\nif rank == 0: dist.barrier()\ntime.sleep(600)",
    "torchrun": "%%torchrun -n 2 --timeout 600\nimport time\nprint('at work')\ntime.sleep(600)",
    "replicas": "%%torchrun --replicas 2 --timeout 600\nimport time\nprint('at work')\ntime.sleep(600)",
}
LOOK_EVERY = 0.05


def _kill(manager: KernelManager) -> None:
    manager.signal_kernel(9)


def _restart(manager: KernelManager) -> None:
    manager.restart_kernel(now=False)


def _shut_down(manager: KernelManager) -> None:
    manager.shutdown_kernel(now=False)


# what happens to the notebook, and which kind of cell is at work then
ENDS: dict[str, tuple[Callable[[KernelManager], None], str]] = {
    "the notebook's process killed with SIGKILL": (_kill, "ranks"),
    "the same with replicas and their lighthouse at work": (_kill, "replicas"),
    "the kernel restarted": (_restart, "ranks"),
    "the kernel shut down": (_shut_down, "torchrun"),
}


def end_notebook(name: str) -> Outcome:
    """Start a notebook, get its ranks to work, end it in this way, and count what is left within 5 s."""
    act, engine = ENDS[name]
    outcome = Outcome(name, engine, said="(nobody is there to be told)", goes_on="a new notebook")
    base = Path(tempfile.mkdtemp(prefix="ends-"))
    manager = KernelManager(kernel_name="python3")
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    manager.start_kernel(env={**os.environ, "TMPDIR": str(base), MARK: base.name}, **silent)
    try:
        _get_to_work(manager, engine)
        theirs = set(marked_processes(base.name))
        if len(theirs) < 7:  # kernel, supervisor, fork server, resource tracker, two ranks, a subprocess
            outcome.problems.append(f"only {len(theirs)} processes were at work")
        moment = time.monotonic()
        act(manager)
        asked = time.monotonic()
        wait_until(lambda: [p for p in theirs if p.alive()] or sockets_below(base), lab.ERROR_WITHIN)
        wait_until(lambda: _of_sessions(base), lab.ERROR_WITHIN - (time.monotonic() - asked))
        outcome.seconds = time.monotonic() - moment
        left = [p for p in theirs if p.alive()]
        outcome.left = len(left)
        for what, those in (("processes", left), ("files", _of_sessions(base))):
            if those:
                outcome.problems.append(f"{what} left: {those}")
    finally:
        if manager.is_alive():
            manager.shutdown_kernel(now=True)
        manager.cleanup_connection_file()
        wait_until(lambda: marked_processes(base.name), lab.ERROR_WITHIN)
        if still := [*marked_processes(base.name), *sockets_below(base)]:
            outcome.problems.append(f"left when the kernel was gone: {still}")
        shutil.rmtree(base, ignore_errors=True)
    return outcome


def _of_sessions(base: Path) -> list[str]:
    return [name for name in entries_below(base) if name.startswith("workshop-")]


def _get_to_work(manager: KernelManager, engine: str) -> None:
    client: Any = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    for code in (START, CHILD):
        reply = client.execute_interactive(code, timeout=60, output_hook=lambda _message: None)
        assert reply["content"]["status"] == "ok", reply["content"]
    client.execute(ENDLESS[engine])
    deadline = time.monotonic() + 30
    shown = ""
    while "at work" not in shown and time.monotonic() < deadline:
        try:
            shown = str(client.get_iopub_msg(timeout=LOOK_EVERY)["content"].get("data", ""))
        except Empty:
            continue
    assert "at work" in shown, "the cell did not start"
    client.stop_channels()
