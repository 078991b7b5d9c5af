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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workshop.launch import device, rank_folder, script, verdicts
from workshop.launch.failures import Program, RankInterrupted, RankTimeout, attach, read_evidence
from workshop.launch.fresh.nodes import Nodes
from workshop.launch.messages import (
    Cancel,
    Clean,
    Done,
    Launch,
    LaunchEnd,
    LaunchReplicas,
    RankProgram,
    ReplicasDone,
    Started,
)
from workshop.launch.output import Live, Show, Transcript, live_of
from workshop.launch.report import Reported, own_report
from workshop.launch.request import (
    Cell,
    Limits,
    Module,
    Script,
    cell_source,
    check_rank_count,
    check_syntax,
    pickled,
    takes_passing,
)
from workshop.launch.session import EngineError, Session
from workshop.site.current import rank_environment

KEEP_RUNS = 5  # directories of past launches kept for their logs
# Seconds between two looks at what ranks have printed, and where nobody asked to see it; events come at once.
_POLL_SECONDS, _POLL_UNSEEN_SECONDS = 0.05, 0.5


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


@takes_passing
def torchrun(
    program: str | Cell | Script | Module,
    n: int,
    *,
    variables: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    nodes: Nodes | None = None,
    on_output: Show | Live | None = None,
) -> Result:
    """Run ``program`` on ``n`` fresh ranks and wait for them.

    variables: values of the notebook, by the names that they have in the program on every rank.
    nodes: set when this is one node of several; then ``n`` is the number of ranks on this node.
    on_output: called with (first line, text so far) when the launch begins and while the ranks run, at most
        ten times a second; as `Live` with a view of one's choice.

    Raises `RankFailed` (with `RankTimeout`) when a rank fails, `RankInterrupted` at the stop button,
    SyntaxError or ValueError before anything starts, `EngineError` when the engine cannot work.
    """
    check_rank_count(n)
    limits = limits or Limits()
    data = pickled(variables) if variables else None
    source = source_of(program)
    session = Session.get()
    session.wait_ready()
    launch = _Launch(session, n, limits, nodes)
    try:
        launch.program, launch.for_ranks = write_program(launch.directory, program, source, data)
        return launch.run(live_of(on_output))
    finally:
        launch.device.release()


def source_of(program: str | Cell | Script | Module) -> str | None:
    """The text to write into the run's directory; None for a file, which stays where it is."""
    if isinstance(program, Script | Module):
        path = (
            script.file_of(program.path) if isinstance(program, Script) else script.module_file(program.name)
        )
        check_syntax(path.read_text(encoding="utf-8"), str(path))
        return None
    cell = Cell(program) if isinstance(program, str) else program
    source = cell_source(cell.magic_line, cell.body)
    check_syntax(source)
    return source


def write_program(
    directory: Path, program: str | Cell | Script | Module, source: str | None, data: bytes | None
) -> tuple[Program, RankProgram]:
    """Make a run's directory with what its ranks read; the program as messages call it, and as ranks run it.

    Raises EngineError where there is no room to write.
    """
    _forget_old_runs(directory.parent)
    passed = directory / rank_folder.PASSED
    try:
        directory.mkdir()
        if data is not None:
            passed.write_bytes(data)
        if source is not None:
            (directory / rank_folder.CELL).write_text(source, encoding="utf-8")
    except OSError as error:
        raise EngineError(
            f"cannot write to {directory.parent} ({error.strerror}): free some room, "
            "or set TMPDIR to a directory with room and restart the kernel"
        ) from None
    here, searched, module = str(Path.cwd()), [p for p in sys.path if p], None
    if isinstance(program, Script):
        path = program.path.resolve()
        known = Program(str(path), label=path.name, folder=str(path.parent))
        searched = [str(path.parent), *searched]
    elif isinstance(program, Module):
        path, module, searched = script.module_file(program.name), program.name, [here, *searched]
        known = Program(str(path), label=path.name, folder=str(script.top_folder(program.name)))
    else:
        path, searched = directory / rank_folder.CELL, [*searched, here]
        known = Program(str(path))
    args = () if isinstance(program, str | Cell) else program.args
    given = str(passed) if data is not None else None
    return known, RankProgram(str(path), here, tuple(searched), args, module, given)


def follow(
    session: Session,
    request: Launch | LaunchReplicas,
    take: Callable[[Any], None],
    look: Callable[[], None] | None,
) -> tuple[Any, bool]:
    """Have the supervisor run ``request``; its last event, `Done` or `ReplicasDone`, and whether the stop
    button ended it.

    take: called with each event. look: called twenty times a second, where somebody looks on.
    """
    number = session.send(request)
    interrupted, done = False, None
    try:
        while True:
            try:
                for event in session.events(number, timeout=_POLL_SECONDS if look else _POLL_UNSEEN_SECONDS):
                    if isinstance(event, Clean):
                        assert done is not None
                        return done, interrupted
                    done = event if isinstance(event, Done | ReplicasDone) else done
                    take(event)
                if look:
                    look()
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                session.tell(Cancel(number, "cancelled"))
    except BaseException:  # whatever keeps us from following it: the ranks must not run on alone
        with contextlib.suppress(EngineError):
            session.tell(Cancel(number, "cancelled"))
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
        if nodes is not None:
            device.refuse_to_share(limits.share_gpu, "ranks share the GPUs of one node, not those of several")
        self.device = device.take(n, session, limits.share_gpu if nodes is None else False)
        self.run_id = uuid.uuid4().hex[:12]
        self.directory = session.directory / f"run-{time.monotonic_ns()}"
        self.attempt = -1
        self.pids: dict[int, int] = {}
        self.folders: dict[int, Path] = {}
        self.transcript = Transcript({})
        self.notes: list[str] = []
        self.cancelled = False
        self.program = Program("")
        self.for_ranks = RankProgram("", "", ())

    def run(self, live: Live | None) -> Result:
        """Send the request, follow it to its end, and return or raise."""
        started = time.monotonic()
        if live is not None:
            live.begin(self.device.sentence)
        program = replace(self.for_ranks, device=self.device.kind, device_memory=self.limits.memory_bytes())
        request = Launch(
            program=program,
            n=self.n,
            run_id=self.run_id,
            run_dir=str(self.directory),
            env=self._environment(),
            timeout=self.limits.seconds(),
            max_restarts=self.limits.max_restarts,
            nodes=self.nodes,
        )
        look = (lambda: live.look(self.transcript)) if live is not None else None
        done, self.cancelled = follow(self.session, request, self._attempt_started, look)
        return self._conclude(done.end, time.monotonic() - started)

    def _environment(self) -> dict[str, str]:
        network = self.nodes.environment() if self.nodes else {}
        ours = rank_environment(os.environ, one_node=self.nodes is None, ranks=self.n)
        return {**ours, **network, **self.device.environment()}

    def _attempt_started(self, event: Any) -> None:
        if not isinstance(event, Started):
            return
        if self.attempt >= 0:
            ends = self._ends(event.previous, "failed")
            why = str(verdicts.failed(ends, self.program)).splitlines()[0]
            self.notes.append(f"attempt {self.attempt + 1} failed ({why}); all ranks started again")
        self.attempt = event.attempt
        self.pids = event.pids
        self.folders = {rank: Path(folder) for rank, folder in event.folders.items()}
        self.transcript = Transcript({rank: of / rank_folder.LOG for rank, of in self.folders.items()})

    def _ends(self, exit_codes: dict[int, int | None], state: str) -> list[Any]:
        return [
            read_evidence(rank, self.folders[rank], exit_codes.get(rank), self.program, state)
            for rank in sorted(self.pids)
        ]

    def _conclude(self, end: LaunchEnd, seconds: float) -> Result:
        self.transcript.finish()
        text = "".join(f"{note}\n" for note in self.notes) + self.transcript.text()
        reports = {rank: own_report(self.folders[rank] / rank_folder.REPORT) for rank in sorted(self.pids)}
        result = Result(reports, text, self.device.sentence, seconds, tuple(self.notes))
        state = end.state
        if state == "succeeded":
            return result
        if self.cancelled:
            where = self._ends(end.exit_codes, state)
            what = verdicts.interrupted(where, self.program, f"the {self.n} ranks were ended.")
            raise attach(RankInterrupted(what), result)
        if state == "timeout" and not self.pids:
            seconds = self.limits.seconds()
            raise RankTimeout(
                f"time is up after {seconds:g} s, before the ranks had started; --timeout 60 allows a minute."
            )
        if end.why or not self.pids:
            raise EngineError(f"the ranks could not be started: {end.why}. Run `workshop doctor`.")
        ends = self._ends(end.exit_codes, state)
        if state == "timeout":
            note = "\n".join(filter(None, (self.nodes.note() if self.nodes else "", self.limits.note())))
            raise attach(verdicts.timed_out(ends, self.limits.seconds(), self.program, note), result)
        raise attach(verdicts.failed(ends, self.program, elsewhere=end.elsewhere), result)


def _forget_old_runs(directory: Path) -> None:
    runs = sorted((p for p in directory.glob("run-*") if p.is_dir()), key=lambda p: int(p.name.split("-")[1]))
    for old in runs[: -KEEP_RUNS + 1]:
        shutil.rmtree(old, ignore_errors=True)
