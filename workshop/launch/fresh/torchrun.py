"""Fresh ranks: run a program as torchrun would, from a notebook, in a fraction of a second.

    >>> from workshop import launch
    >>> result = launch.torchrun("import os; print('hello from', os.environ['RANK'])", n=2)
    >>> print(result.text)
    [rank 0] hello from 0
    [rank 1] hello from 1

The program is source text or a `Script`. It runs under PyTorch's elastic agent in a supervisor
process (`child/supervisor.py`), so the notebook's own process never imports torch and never forks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workshop.launch import device, script, verdicts
from workshop.launch.environment import rank_environment
from workshop.launch.failures import Program, RankInterrupted, RankTimeout, read_evidence
from workshop.launch.fresh.nodes import Nodes
from workshop.launch.limits import Limits, check_rank_count
from workshop.launch.output import Transcript
from workshop.launch.report import Reported, read_report
from workshop.launch.session import EngineError, Session
from workshop.launch.variables import pickled

KEEP_RUNS = 5  # directories of past launches kept for their logs
# Seconds between two looks at what ranks have printed, and where nobody asked to see it; events come at once.
_LOOK_EVERY, _LOOK_AT_NOTHING = 0.05, 0.5


@dataclass(frozen=True)
class Script:
    """A program in a file, with its arguments."""

    path: Path
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """A program from a notebook cell; the magic line is line 1, so that line numbers are the cell's."""

    body: str
    magic_line: str = "%%torchrun"


@dataclass(frozen=True)
class Result:
    """What a launch left: `result[rank]` what that rank reported, `text` what the ranks printed."""

    reports: dict[int, Reported]
    text: str
    device: str
    seconds: float
    notes: tuple[str, ...] = field(default=())

    def __getitem__(self, rank: int) -> Reported:
        if rank not in self.reports:
            raise KeyError(
                f"no rank {rank}; this launch had ranks {min(self.reports)} to {max(self.reports)}"
            )
        return self.reports[rank]

    def __len__(self) -> int:
        return len(self.reports)

    def __repr__(self) -> str:
        shown = "\n".join(f"rank {rank}: {dict(values)}" for rank, values in self.reports.items())
        return shown or self.device


def torchrun(
    program: str | Cell | Script,
    n: int,
    *,
    passing: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    nodes: Nodes | None = None,
    on_output: Callable[[str, str], None] | None = None,
) -> Result:
    """Run ``program`` on ``n`` fresh ranks and wait for them.

    passing: values that become variables of the program on every rank.
    nodes: set when this is one node of several; then ``n`` is the number of ranks on this node.
    on_output: called with (first line, text so far) while the ranks run, at most ten times a second.

    Raises `RankFailed` (with `RankTimeout`) when a rank fails, `RankInterrupted` at the stop button,
    SyntaxError or ValueError before anything starts, `EngineError` when the engine cannot work.
    """
    check_rank_count(n)
    limits = limits or Limits()
    data = pickled(passing) if passing else None
    source = source_of(program)
    session = Session.get()
    session.wait_ready()
    launch = _Launch(session, n, limits, nodes)
    try:
        launch.program, launch.request = write_program(launch.directory, program, source, data)
        return launch.run(on_output)
    finally:
        launch.device.release()


def source_of(program: str | Cell | Script) -> str | None:
    """The text to write into the run's directory; None for a script, which stays where it is."""
    if isinstance(program, Script):
        if not program.path.is_file():
            near = sorted(path.name for path in program.path.parent.glob("*.py"))[:5]
            beside = f"; in that folder: {', '.join(near)}" if near else ""
            raise ValueError(f"there is no script {program.path}{beside}")
        script.check_syntax(program.path.read_text(encoding="utf-8"), str(program.path))
        return None
    cell = Cell(program) if isinstance(program, str) else program
    source = script.cell_source(cell.magic_line, cell.body)
    script.check_syntax(source)
    return source


def write_program(
    directory: Path, program: str | Cell | Script, source: str | None, data: bytes | None
) -> tuple[Program, dict[str, Any]]:
    """Make a run's directory with what its ranks read; what messages call the program, what a request says.

    Raises EngineError where there is no room to write.
    """
    _forget_old_runs(directory.parent)
    passed = directory / "passed.pkl"
    try:
        directory.mkdir()
        if data is not None:
            passed.write_bytes(data)
        if source is not None:
            (directory / "cell.py").write_text(source, encoding="utf-8")
    except OSError as error:
        raise EngineError(
            f"cannot write to {directory.parent} ({error.strerror}): free some room, "
            "or set TMPDIR to a directory with room and restart the kernel"
        ) from None
    searched = [p for p in sys.path if p]
    if isinstance(program, Script):
        path, args, searched = (
            program.path.resolve(),
            program.args,
            [str(program.path.resolve().parent), *searched],
        )
    else:
        path, args, searched = directory / "cell.py", (), [*searched, str(Path.cwd())]
    known = Program(str(path), label=path.name if isinstance(program, Script) else "cell")
    return known, {
        "program": str(path),
        "args": list(args),
        "passed": str(passed) if data is not None else None,
        "sys_path": searched,
    }


def follow(
    session: Session,
    op: str,
    request: Mapping[str, Any],
    take: Callable[[dict[str, Any]], None],
    look: Callable[[], None] | None,
) -> tuple[dict[str, Any], bool]:
    """Have the supervisor run ``request``; its last event, and whether the stop button ended it.

    take: called with each event. look: called at most ten times a second, where somebody looks on.
    """
    number = session.send(op, **request)
    interrupted, done, looked = False, None, time.monotonic()
    try:
        while True:
            try:
                for event in session.events(number, timeout=_LOOK_EVERY if look else _LOOK_AT_NOTHING):
                    if event["event"] == "done_clean":
                        assert done is not None
                        return done, interrupted
                    done = event if event["event"] == "done" else done
                    take(event)
                if look and time.monotonic() - looked > 0.1:
                    look()
                    looked = time.monotonic()
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                session.tell("cancel", id=number, why="cancelled")
    except BaseException:  # whatever keeps us from following it: the ranks must not run on alone
        with contextlib.suppress(EngineError):
            session.tell("cancel", id=number, why="cancelled")
        raise
    finally:
        session.forget(number)


class _Launch:
    """One launch, from the request to the result."""

    def __init__(self, session: Session, n: int, limits: Limits, nodes: Nodes | None):
        self.session = session
        self.n = n
        self.limits = limits
        self.nodes = nodes
        self.device = device.take(n, session)
        self.run_id = uuid.uuid4().hex[:12]
        self.directory = session.directory / f"run-{time.monotonic_ns()}"
        self.attempt = -1
        self.pids: dict[int, int] = {}
        self.transcript = Transcript({})
        self.notes: list[str] = []
        self.cancelled = False
        self.program = Program("")
        self.request: dict[str, Any] = {}

    def run(self, on_output: Callable[[str, str], None] | None) -> Result:
        """Send the request, follow it to its end, and return or raise."""
        started = time.monotonic()

        def look() -> None:
            if on_output and self.transcript.read():
                on_output(self.device.sentence, self.transcript.text() + self.transcript.bar())

        request = {
            "n": self.n,
            "run_id": self.run_id,
            "run_dir": str(self.directory),
            "env": self._environment(),
            "cwd": str(Path.cwd()),
            "timeout": self.limits.seconds(),
            "max_restarts": self.limits.max_restarts,
            "device": self.device.kind,
            "device_memory": self.limits.memory_bytes(),
            "nodes": vars(self.nodes) if self.nodes else None,
            **self.request,
        }
        take = self._attempt_started
        done, self.cancelled = follow(self.session, "torchrun", request, take, look if on_output else None)
        return self._conclude(done, time.monotonic() - started)

    def _environment(self) -> dict[str, str]:
        network = self.nodes.environment() if self.nodes else {}
        ours = rank_environment(os.environ, one_node=self.nodes is None, ranks=self.n)
        return {**ours, **network, **self.device.environment()}

    def _attempt_started(self, event: dict[str, Any]) -> None:
        if event["event"] != "started":
            return
        if self.attempt >= 0:
            ends = self._ends(by_number(event["previous"]), "failed")
            why = str(verdicts.failed(ends, self.program)).splitlines()[0]
            self.notes.append(f"attempt {self.attempt + 1} failed ({why}); all ranks started again")
        self.attempt = event["attempt"]
        self.pids = by_number(event["pids"])
        self.transcript = Transcript({rank: self._rank_dir(rank) / "log" for rank in self.pids})

    def _rank_dir(self, rank: int) -> Path:
        return self.directory / f"attempt_{max(self.attempt, 0)}" / f"rank_{rank}"

    def _ends(self, exit_codes: dict[int, int | None], state: str) -> list[Any]:
        return [
            read_evidence(rank, self._rank_dir(rank), exit_codes.get(rank), self.program, state)
            for rank in sorted(self.pids)
        ]

    def _conclude(self, done: dict[str, Any], seconds: float) -> Result:
        self.transcript.finish()
        text = "".join(f"{note}\n" for note in self.notes) + self.transcript.text()
        reports = {
            rank: read_report(self._rank_dir(rank) / "report.data", allow_pickle=True)
            for rank in sorted(self.pids)
        }
        result = Result(reports, text, self.device.sentence, seconds, tuple(self.notes))
        state = done["state"]
        if state == "succeeded":
            return result
        if self.cancelled:
            raise attach(RankInterrupted(f"the {self.n} ranks were ended."), result)
        if state == "timeout" and not self.pids:
            seconds = self.limits.seconds()
            raise RankTimeout(
                f"time is up after {seconds:g} s, before the ranks had started; allow them more."
            )
        if done["why"] or not self.pids:
            raise EngineError(f"the ranks could not be started: {done['why']}. Run `workshop doctor`.")
        ends = self._ends(by_number(done["exit_codes"]), state)
        if state == "timeout":
            note = self.nodes.note() if self.nodes else ""
            raise attach(verdicts.timed_out(ends, self.limits.seconds(), self.program, note), result)
        raise attach(verdicts.failed(ends, self.program), result)


def attach(error: BaseException, result: Any) -> Any:
    """The exception, carrying what the ranks had printed and reported until then."""
    error.result = result  # type: ignore[attr-defined]
    return error


def by_number(event: Mapping[str, Any]) -> dict[int, Any]:
    """JSON made text of the numbers of ranks (or of replicas)."""
    return {int(number): value for number, value in event.items()}


def _forget_old_runs(directory: Path) -> None:
    runs = sorted((p for p in directory.glob("run-*") if p.is_dir()), key=lambda p: int(p.name.split("-")[1]))
    for old in runs[: -KEEP_RUNS + 1]:
        shutil.rmtree(old, ignore_errors=True)
