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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults import Fault
from benchmarks.faults.orphans import (
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
CHECK = """
total = torch.ones(3, device=device) * (rank + 1)
dist.all_reduce(total)
print(set_before, total.tolist())
"""


class Hung(BaseException):
    """The engine did not come back; not an Exception, so that nothing on the way takes it for its own."""


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
    main = threading.main_thread().ident
    timer = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)


class Lab:
    """Ranks that stay, a session for fresh ones, and a place to count what is left. Close it."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="faults-"))
        self._outside = {name: os.environ.get(name) for name in ("TMPDIR", MARK)}
        self._tempdir, tempfile.tempdir = tempfile.tempdir, str(self.base)
        os.environ.update({"TMPDIR": str(self.base), MARK: self.base.name})
        if launch.Session._current is not None:
            launch.Session._current.close()  # its processes carry no mark
        self.marks = self.base / "marks"
        self.program = self.base / "fault.py"
        self.kept = 0
        self.ranks: launch.Ranks | None = None
        self.session()

    def session(self) -> launch.Session:
        """The session, warm."""
        session = launch.Session.get()
        session.wait_ready()
        return session

    def run(self, fault: Fault, engine: str) -> Outcome:
        """Break the cell once on this engine, and check everything."""
        outcome = Outcome(fault.name, engine)
        try:
            self.session()
            with outer_limit(HUNG_AFTER):
                self._on_ranks(fault, outcome) if engine == "ranks" else self._fresh(fault, outcome)
        except Hung as hung:
            outcome.problems.append(f"hung: {hung}")
            launch.Session.get().close()
            self.ranks = None
        return outcome

    def close(self) -> list[str]:
        """Close the session as the end of a notebook does; what is left after that, in words."""
        listeners = listeners_beyond_loopback(marked_processes(self.base.name))
        self.ranks = None
        launch.Session.get().close()
        for path in (self.marks, self.program):
            path.unlink(missing_ok=True)
        # A process that ends gives its memory back first, its mark with it; its descriptors a moment later.
        wait_until(lambda: marked_processes(self.base.name) or sockets_below(self.base), ERROR_WITHIN)
        left = {
            "processes": marked_processes(self.base.name),
            "sockets": sockets_below(self.base),
            "files": entries_below(self.base),
            "listeners beyond loopback": listeners,
        }
        for name, value in self._outside.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        tempfile.tempdir = self._tempdir
        shutil.rmtree(self.base, ignore_errors=True)
        return [f"{len(those)} {what} left: {those}" for what, those in left.items() if those]

    # -- the two engines ------------------------------------------------------------------------

    def _on_ranks(self, fault: Fault, outcome: Outcome) -> None:
        ranks = self._group(fault)
        self.kept += 1
        ranks.run(f"set_before = {self.kept}")
        pids = [process.pid for process in ranks.processes.values()]
        before = set(marked_processes(self.base.name))
        self._break(fault, outcome, lambda code: ranks.run(code, timeout=fault.timeout))
        self._count_left(outcome, before)
        if fault.costs_restart:
            self._check_restart(ranks, outcome, pids)
        elif self._after(ranks, outcome) and pids == [p.pid for p in ranks.processes.values()]:
            outcome.goes_on = "yes"
        else:
            outcome.problems.append("the same ranks did not go on")
        if ranks is not self.ranks or outcome.problems or fault.changes_signals:
            ranks.stop()
            self.ranks = None if ranks is self.ranks else self.ranks

    def _group(self, fault: Fault) -> launch.Ranks:
        if fault.device_memory:
            return launch.Ranks(fault.world_size, launch.Limits(device_memory=fault.device_memory))
        if fault.world_size != WORLD_SIZE:
            return launch.Ranks(fault.world_size)
        if self.ranks is not None and not self.ranks.session.usable():
            self.ranks.stop()  # a fault of fresh ranks has ended the supervisor of both
            self.ranks = None
        if self.ranks is None:
            self.ranks = launch.Ranks(WORLD_SIZE)
        return self.ranks

    def _fresh(self, fault: Fault, outcome: Outcome) -> None:
        before = set(marked_processes(self.base.name))
        limits = launch.Limits(timeout=fault.timeout, device_memory=fault.device_memory)

        def run(code: str) -> launch.Result:
            self.program.write_text(code)
            return launch.torchrun(launch.Script(self.program), fault.world_size, limits=limits)

        self._break(fault, outcome, run)
        self._count_left(outcome, before)
        again = launch.torchrun("import os; print(os.environ['WORLD_SIZE'])", WORLD_SIZE)
        outcome.goes_on = "fresh ranks each time"
        if again.text != f"[ranks 0-{WORLD_SIZE - 1}] {WORLD_SIZE}\n":
            outcome.problems.append(f"the next launch printed {again.text!r}")

    # -- breaking -------------------------------------------------------------------------------

    def _break(self, fault: Fault, outcome: Outcome, run: Callable[[str], Any]) -> None:
        """Run the cell; note what was said and how long after the failure."""
        self.marks.write_text("")
        started = time.monotonic()
        meddler = _Meddler(self, fault) if fault.from_outside else None
        text = "ended well"
        try:
            printed = run(self._first_line(fault) + fault.source).text
        except (launch.RankFailed, launch.EngineError, KeyboardInterrupt) as error:
            text = str(error) or type(error).__name__
            result = getattr(error, "result", None)
            printed = result.text if result else ""
        ended = time.monotonic()
        began = [started + fault.timeout] if fault.timeout else self._marked("failed")
        if meddler:
            began = [meddler.finish()]
        outcome.said = text.splitlines()[0]
        if not re.search(fault.says, f"{text}\nprints: {printed}" if printed else text):
            outcome.problems.append(f"said {text!r}")
        if not began:
            outcome.problems.append("the cell never came to its fault")
            return
        outcome.seconds = ended - min(began)
        if outcome.seconds > ERROR_WITHIN:
            outcome.problems.append(f"{outcome.seconds:.1f} s from the failure to the error")

    def _first_line(self, fault: Fault) -> str:
        # The barrier: a rank that ends while its peer is still in init_process_group leaves it waiting there.
        join = "" if fault.before_init else "dist.init_process_group(); dist.barrier(); "
        return (
            f"import os, signal, sys, time, torch, torch.distributed as dist; {join}"
            "rank = int(os.environ['RANK']); "
            "device = torch.device('cuda', rank) if torch.cuda.is_available() else torch.device('cpu'); "
            f"mark = lambda word: open({str(self.marks)!r}, 'a').write(f'{{word}} {{time.monotonic()}}\\n')\n"
        )

    def _marked(self, word: str) -> list[float]:
        lines = [line.split() for line in self.marks.read_text().splitlines()]
        return [float(line[1]) for line in lines if line[0] == word]

    # -- afterwards -----------------------------------------------------------------------------

    def _after(self, ranks: launch.Ranks, outcome: Outcome) -> bool:
        """A cell that needs every rank, the group, and a variable from before the fault."""
        total = [sum(range(1, ranks.n + 1)) * 1.0] * 3
        expected = f"[ranks 0-{ranks.n - 1}] {self.kept} {total}\n"
        try:
            text = ranks.run(CHECK, timeout=10).text
        except launch.RankFailed as error:
            text = str(error)
        if text != expected:
            outcome.problems.append(f"the cell after the fault gave {text!r}, not {expected!r}")
        return text == expected

    def _check_restart(self, ranks: launch.Ranks, outcome: Outcome, pids: list[int]) -> None:
        """The next cell fails at once and says what to do; a restart makes the ranks whole."""
        began = time.monotonic()
        try:
            ranks.run("print('not to be seen')")
            outcome.problems.append("a cell ran on a broken set of ranks")
        except launch.RankFailed as error:
            if "%ranks restart" not in str(error) or time.monotonic() - began > 1:
                outcome.problems.append(f"after {time.monotonic() - began:.1f} s: {error}")
        wait_until(lambda: _alive(pids), ERROR_WITHIN)
        if _alive(pids):
            outcome.problems.append(f"ranks still there: {_alive(pids)}")
        self.session()
        began = time.monotonic()
        ranks.restart()
        ranks.run(f"set_before = {self.kept}")
        if self._after(ranks, outcome):
            outcome.goes_on = f"after a restart ({time.monotonic() - began:.1f} s)"

    def _count_left(self, outcome: Outcome, before: set[ProcessId]) -> None:
        """Processes that were not there before the fault; they have a moment to go."""

        def new() -> set[ProcessId]:
            engine = launch.Session.get()._process.pid  # a new supervisor where the old one was killed
            return {p for p in marked_processes(self.base.name) if p not in before and p.pid != engine}

        took = wait_until(new, ERROR_WITHIN)
        outcome.left = len(new()) if took >= ERROR_WITHIN else 0
        if outcome.left:
            outcome.problems.append(f"{outcome.left} processes left")


def _alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if (process := ProcessId.of(pid)) and process.alive()]


class _Meddler:
    """Does something to the cell once all ranks are at work in it."""

    def __init__(self, lab: Lab, fault: Fault):
        self.lab, self.what, self.world_size = lab, fault.from_outside, fault.world_size
        self.moment = 0.0
        self.supervisor = ProcessId.of(launch.Session.get()._process.pid)
        self._thread = threading.Thread(target=self._act)
        self._thread.start()

    def _act(self) -> None:
        wait_until(lambda: len(self.lab._marked("ready")) < self.world_size, HUNG_AFTER)
        time.sleep(0.2)
        self.moment = time.monotonic()
        if self.what == "supervisor killed":
            assert self.supervisor is not None
            self.supervisor.signal(signal.SIGKILL)
            return
        os.kill(os.getpid(), signal.SIGINT)
        if self.what == "stop button twice":
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

    def finish(self) -> float:
        """The moment at which it acted."""
        with suppress(KeyboardInterrupt):  # the second press may come when all is over
            self._thread.join()
        self._thread.join()
        return self.moment
