"""Breaks one cell at a time, times the error, and checks what the notebook is left with.

The lab plays the notebook: its process holds the session, it runs the cells, and the stop button is a SIGINT
to itself. Nothing here knows how the engine works inside; it looks at messages, at process numbers, at
``/proc`` and at a temporary directory of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fault_list import Fault
from benchmarks.leftovers import (
    MARK,
    entries_below,
    listeners_beyond_loopback,
    marked_processes,
    sockets_below,
    wait_until,
)
from workshop import launch
from workshop.launch.processes import ProcessId

ERROR_WITHIN = 5.0  # seconds from the first failure to the error, and to the last process gone
HUNG_AFTER = 40.0  # the lab's own patience: a cell that takes longer is given up
WORLD_SIZE = 2


class Hung(BaseException):
    """The engine did not come back; not an Exception, so that nothing on the way can take it for its own."""


@dataclass
class Outcome:
    """One fault, once. ``problems`` is empty when all that the contract promises was so."""

    fault: str
    engine: str
    seconds: float | None = None
    said: str = ""
    goes_on: str = ""
    left: int = 0
    problems: list[str] = field(default_factory=list)


@contextmanager
def outer_limit(seconds: float) -> Iterator[None]:
    """Raise `Hung` in the main thread when the block takes longer."""

    def give_up(_number: int, _frame: Any) -> None:
        raise Hung(f"no answer for {seconds:.0f} s")

    before = signal.signal(signal.SIGUSR1, give_up)
    timer = threading.Timer(
        seconds, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1)
    )
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)


class Lab:
    """Two ranks that stay, a session for fresh ones, and a place to count what is left. Close it."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="faults-"))
        self._outside = {"TMPDIR": os.environ.get("TMPDIR"), MARK: os.environ.get(MARK)}
        self._tempdir, tempfile.tempdir = tempfile.tempdir, str(self.base)
        os.environ.update({"TMPDIR": str(self.base), MARK: self.base.name})
        self.kept = 0
        self.ranks: launch.Ranks | None = None

    def run(self, fault: Fault, engine: str) -> Outcome:
        """Break the cell once on this engine, and check everything."""
        outcome = Outcome(fault.name, engine)
        try:
            with outer_limit(HUNG_AFTER):
                self._run_on_ranks(fault, outcome) if engine == "ranks" else self._run_fresh(fault, outcome)
        except Hung as hung:
            outcome.problems.append(f"hung: {hung}")
            launch.Session.get().close()
            self.ranks = None
        return outcome

    # -- the two engines ------------------------------------------------------------------------

    def _run_on_ranks(self, fault: Fault, outcome: Outcome) -> None:
        ranks = self._group(fault)
        self.kept += 1
        ranks.run(f"kept = {self.kept} * 10 + rank")
        pids = [process.pid for process in ranks.processes.values()]
        own = set(marked_processes(self.base.name))
        self._break(fault, outcome, lambda code: ranks.run(code, timeout=fault.timeout))
        if fault.costs_restart:
            self._check_restart(ranks, outcome, own)
        else:
            self._check_same_ranks(ranks, outcome, pids)
            self._count_left(outcome, own)
        if ranks is not self.ranks:
            ranks.stop()

    def _group(self, fault: Fault) -> launch.Ranks:
        if fault.device_memory:
            return launch.Ranks(WORLD_SIZE, launch.Limits(device_memory=fault.device_memory))
        if self.ranks is None:
            self.ranks = launch.Ranks(WORLD_SIZE)
        return self.ranks

    def _run_fresh(self, fault: Fault, outcome: Outcome) -> None:
        launch.Session.get().wait_ready()
        own = set(marked_processes(self.base.name))
        limits = launch.Limits(timeout=fault.timeout, device_memory=fault.device_memory)
        self._break(
            fault,
            outcome,
            lambda code: launch.torchrun(launch.Cell(code.partition("\n")[2], code.partition("\n")[0]), WORLD_SIZE, limits=limits)
            if False
            else launch.torchrun(_whole(code), WORLD_SIZE, limits=limits),
        )
        self._count_left(outcome, own)
        again = launch.torchrun("import os; print(os.environ['WORLD_SIZE'])", WORLD_SIZE)
        outcome.goes_on = "next launch works"
        if again.text != f"[ranks 0-{WORLD_SIZE - 1}] {WORLD_SIZE}\n":
            outcome.problems.append(f"the next launch printed {again.text!r}")

    # -- breaking -------------------------------------------------------------------------------
