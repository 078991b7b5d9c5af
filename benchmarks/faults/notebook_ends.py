"""The end of a whole notebook: a real kernel that is killed, restarted or shut down with ranks at work.

The kernel is started as a Jupyter server starts it (`jupyter_client.KernelManager`). It has a set of staying
ranks, one of which has started a subprocess; then a parallel cell runs that would never end. Another notebook
may stand beside it, in the same TMPDIR: its ranks talk to each other all the while, and go on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from queue import Empty
from typing import Any, NamedTuple

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
KEEP = "%%ranks\nkept = 40 + rank"
TALK = (
    "%%ranks\nimport time\nfor _ in range(10):\n    total = torch.ones(1)\n    dist.all_reduce(total)\n"
    "    time.sleep(0.05)\nprint(kept, total.item())"
)
PRINTS = ("[rank 0] 40 2.0", "[rank 1] 41 2.0")
LOOK_EVERY = 0.05


class End(NamedTuple):
    """What happens to the notebook, which kind of cell is at work then, and whether another is too."""

    act: Callable[[KernelManager], None]
    engine: str
    two: bool = False


def _kill(manager: KernelManager) -> None:
    manager.signal_kernel(9)


def _restart(manager: KernelManager) -> None:
    manager.restart_kernel(now=False)


def _shut_down(manager: KernelManager) -> None:
    manager.shutdown_kernel(now=False)


ENDS: dict[str, End] = {
    "the notebook's process killed with SIGKILL": End(_kill, "ranks"),
    "the same with replicas and their lighthouse at work": End(_kill, "replicas"),
    "the kernel restarted": End(_restart, "ranks"),
    "the kernel shut down": End(_shut_down, "torchrun"),
    "two notebooks at once, one killed, the other goes on": End(_kill, "ranks", two=True),
    "two notebooks at once, one restarted, the other goes on": End(_restart, "torchrun", two=True),
}


def end_notebook(name: str) -> Outcome:
    """Start a notebook, get its ranks to work, end it in this way, and count what is left within 5 s."""
    end = ENDS[name]
    outcome = Outcome(name, end.engine, said="(nobody is there to be told)", goes_on="a new notebook")
    base = Path(tempfile.mkdtemp(prefix="ends-"))
    try:
        with _other_notebook(base, outcome) if end.two else nullcontext():
            _end_one(end, base, outcome)
        if still := sockets_below(base):
            outcome.problems.append(f"left when all kernels were gone: {still}")
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return outcome


def _end_one(end: End, base: Path, outcome: Outcome) -> None:
    """The notebook that ends. What another has in this TMPDIR by now is not its own."""
    others = _of_sessions(base)

    def files() -> list[str]:
        return [name for name in _of_sessions(base) if name not in others]

    def sockets() -> list[str]:
        return [path for path in sockets_below(base) if not any(f"/{name}/" in path for name in others)]

    with _kernel(base, base.name) as manager:
        _get_to_work(manager, end.engine)
        theirs = set(marked_processes(base.name))
        if len(theirs) < 7:  # kernel, supervisor, fork server, resource tracker, two ranks, a subprocess
            outcome.problems.append(f"only {len(theirs)} processes were at work")
        moment = time.monotonic()
        end.act(manager)
        began = time.monotonic()
        wait_until(lambda: [p for p in theirs if p.alive()] or sockets(), lab.ERROR_WITHIN)
        wait_until(files, lab.ERROR_WITHIN - (time.monotonic() - began))
        outcome.seconds = time.monotonic() - moment
        left = [p for p in theirs if p.alive()]
        outcome.left = len(left)
        for what, those in (("processes", left), ("files", files())):
            if those:
                outcome.problems.append(f"{what} left: {those}")
    if still := [*marked_processes(base.name), *sockets()]:
        outcome.problems.append(f"left when the kernel was gone: {still}")


@contextmanager
def _kernel(base: Path, mark: str) -> Iterator[KernelManager]:
    """A kernel whose processes carry ``mark``; afterwards it and they are gone, or had the time to be.

    It listens on files, in a folder of its own: a port that was free when it was chosen may be another
    kernel's when this one wants it, and then it dies as it starts.
    """
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder, open(f"{folder}/stderr", "w+") as errors:
        manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")
        streams = {"stdout": subprocess.DEVNULL, "stderr": errors}
        manager.start_kernel(env={**os.environ, "TMPDIR": str(base), MARK: mark}, **streams)
        try:
            yield manager
        except RuntimeError as error:
            errors.seek(0)
            raise RuntimeError(f"{error}; the kernel's last words: {errors.read()[-1000:]}") from error
        finally:
            if manager.is_alive():
                manager.shutdown_kernel(now=True)
            manager.cleanup_connection_file()
            wait_until(lambda: marked_processes(mark), lab.ERROR_WITHIN)


@contextmanager
def _other_notebook(base: Path, outcome: Outcome) -> Iterator[None]:
    """Another notebook, whose ranks talk while the block runs: their cells end well, with their variables."""
    mark = f"{base.name}-other"
    with _kernel(base, mark) as manager, ThreadPoolExecutor(1) as pool:
        client: Any = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        for code in (START, KEEP):
            _run(client, code)
        talk: Future[str] = pool.submit(_talk_until, client, stop := [])
        try:
            yield
        finally:
            stop.append(True)
        shown = talk.result()
        if not all(line in shown for line in PRINTS):
            outcome.problems.append(f"the other notebook showed {shown[-300:]!r}")
        client.stop_channels()
    if still := marked_processes(mark):
        outcome.problems.append(f"left of the other notebook: {still}")


def _talk_until(client: Any, stop: list[bool]) -> str:
    """Cells in which the ranks talk, until ``stop`` holds something; what the last one showed."""
    while True:
        last = bool(stop)
        shown = _run(client, TALK)
        if last or not all(line in shown for line in PRINTS):
            return shown


def _run(client: Any, code: str) -> str:
    """Run one cell that must end well; what it showed."""
    shown: list[str] = []
    reply = client.execute_interactive(
        code, timeout=60, output_hook=lambda message: shown.append(str(message["content"]))
    )
    assert reply["content"]["status"] == "ok", reply["content"]
    return "".join(shown)


def _of_sessions(base: Path) -> list[str]:
    return [name for name in entries_below(base) if name.startswith("workshop-")]


def _get_to_work(manager: KernelManager, engine: str) -> None:
    client: Any = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    for code in (START, CHILD):
        _run(client, code)
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
