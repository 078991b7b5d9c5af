"""What went wrong, told in the learner's words: who failed first, on which line, and where the others were.

A rank leaves three kinds of evidence in its directory: a record of its exception, a dump of its
stacks (written when it was ended, asked, or crashed), or nothing but an exit code. `read_evidence`
turns each into a `RankEnd`; `judge` finds out who was first; `RankFailed` says it.
"""

from __future__ import annotations

import itertools
import re
import signal
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workshop.launch import rank_folder
from workshop.launch.messages import read_file

SIMULTANEOUS_SECONDS = 0.15

# What gloo, NCCL and the store say when the other side went away: an effect, never the cause.
_PEER_GONE = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|Socket (closed|Timeout)|\[.*gloo/transport|"
    r"NCCL communicator was aborted|remote process exited|failed to recv, got 0 bytes|"
    r"DistNetworkError|Connection was likely closed|Application timeout caused pair closure|"
    r"Timed out waiting .* for (send|recv)",
    re.IGNORECASE,
)
_WRAPPERS = frozenset(("wrapper", "<module>", "_wrapped_call_impl", "_call_impl", "inner", "_fn"))
_COLLECTIVES_LOGGER = (
    "torch/distributed/c10d_logger.py"  # its wrapper stands around each of torch's collectives
)
_INSTALLED = ("site-packages", "dist-packages")
_LIBRARIES = tuple(
    f"{folder}/" for folder in (sysconfig.get_path("stdlib"), Path(__file__).resolve().parents[1])
)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback, outermost first in a list."""

    file: str
    line: int
    name: str
    source: str = ""


@dataclass(frozen=True)
class WrongSyntax:
    """What Python could not read, and where."""

    file: str | None
    line: int | None
    source: str


@dataclass(frozen=True)
class FailureRecord:
    """A rank's exception as it leaves it in its folder (`child/failure_record.py` writes it).

    time: by the clock that all ranks share. type: of the exception. frames: from the outermost one of the
    learner's own program inward. cause: what it was raised from.
    """

    time: float
    type: str
    message: str
    frames: tuple[Frame, ...]
    cause: str | None
    syntax: WrongSyntax | None


@dataclass(frozen=True)
class Place:
    """Where a rank was: the innermost line of the learner's program, and the torch function under it.

    file: what a further file of the program is called; "" for the program itself.
    """

    line: int | None
    function: str | None
    file: str = ""

    @property
    def where(self) -> str:
        """``line 9``, ``line 51 of comms.py``, or nothing."""
        return f"line {self.line}{f' of {self.file}' * bool(self.file)}" if self.line else ""

    def __str__(self) -> str:
        parts = [f"in {self.function}" if self.function else "", self.where]
        return ", ".join(filter(None, parts)) or "not in the program's own lines"


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended.

    kind: ``finished``, ``raised``, ``died`` (signal, exit code), ``ended`` (by us, because another
    failed), ``stuck`` (still at work when time ran out), ``lost`` (its peer went away first).
    """

    rank: int
    kind: str
    place: Place = Place(None, None)
    error_type: str = ""
    message: str = ""
    time: float = 0.0
    frames: tuple[Frame, ...] = ()
    cause: str | None = None
    exit_code: int | None = None
    syntax: WrongSyntax | None = None


@dataclass(frozen=True)
class Failure:
    """A rank that failed by itself, as `RankFailed.failures` lists it; the first failed first.

    file: the further file of the program in which ``line`` is; "" for the program itself.
    replica: whose rank, where the launch had replicas.
    """

    rank: int
    kind: str
    error_type: str
    message: str
    line: int | None
    function: str | None
    traceback: str
    file: str = ""
    replica: int | None = None


class RankFailed(RuntimeError):
    """A program failed on its ranks. The message says who, where and why; `failures` has it as data."""

    def __init__(self, text: str, failures: Sequence[Failure] = (), ends: Sequence[RankEnd] = ()):
        super().__init__(text)
        self.failures = list(failures)
        self.ends = list(ends)

    def _render_traceback_(self) -> list[str]:
        """IPython shows this instead of the launcher's own stack, which would tell the learner nothing."""
        return [f"{type(self).__name__}: {self}"]


class RankTimeout(RankFailed):
    """Time ran out; the message says where each rank was."""


class RankInterrupted(KeyboardInterrupt):
    """The stop button: the ranks were ended, or (in %%ranks) interrupted with their variables kept."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


def attach(error: BaseException, result: Any) -> Any:
    """The exception, carrying what the ranks had printed and reported until then."""
    error.result = result  # type: ignore[attr-defined]
    return error


@dataclass(frozen=True)
class Program:
    """Which files are the learner's own, and what they are called in messages.

    folder: all below it belongs to the program too, libraries excepted; "" where the program is one file.
    """

    file: str
    prefix: bool = False  # True: any file name that begins so (the cells of ranks that stay)
    label: str = "cell"
    folder: str = ""

    def owns(self, file: str) -> bool:
        """Is this file the learner's own?"""
        if self.prefix:
            return file.startswith(self.file)
        return file == self.file or bool(self._below(file))

    def name_of(self, file: str) -> str:
        """What messages call one of the program's files; "" for the program itself."""
        return "" if self.prefix or file == self.file else self._below(file)

    def _below(self, file: str) -> str:
        """The file's path within the folder; "" outside it, and for a library that is installed in it."""
        if (
            not self.folder
            or not file.startswith(self.folder.rstrip("/") + "/")
            or file.startswith(_LIBRARIES)
        ):
            return ""
        inner = file[len(self.folder.rstrip("/")) + 1 :]
        return "" if any(part in _INSTALLED for part in inner.split("/")) else inner


def place_in(frames: Sequence[Frame], program: Program) -> Place:
    """The innermost frame of the program, and the torch function it called, outermost frame first."""
    own = [i for i, frame in enumerate(frames) if program.owns(frame.file)]
    if not own:
        return Place(None, None)
    called = () if _has_left_its_collective(frames) else frames[own[-1] + 1 :]
    below = [f for f in called if _is_torchs_own(f) and f.name not in _WRAPPERS]
    collectives = [f for f in below if f.file.endswith("distributed_c10d.py")]  # FSDP's all_gather, say
    function = (collectives or below)[0].name.removeprefix("_") if below else None
    return Place(frames[own[-1]].line, function, program.name_of(frames[own[-1]].file))


def _is_torchs_own(frame: Frame) -> bool:
    return "/torch/" in frame.file and not frame.file.endswith(_COLLECTIVES_LOGGER)


def _has_left_its_collective(frames: Sequence[Frame]) -> bool:
    """Is the wrapper around a collective on the stack, and below it something else, or nothing?"""
    around = [i for i, f in enumerate(frames) if f.file.endswith(_COLLECTIVES_LOGGER) and f.name == "wrapper"]
    return bool(around) and not any(map(_is_torchs_own, frames[around[-1] + 1 : around[-1] + 2]))


def is_collective(frames: Sequence[Frame]) -> bool:
    """Is a rank with this stack inside a call of torch.distributed's own?"""
    return any(frame.file.endswith("torch/distributed/distributed_c10d.py") for frame in frames)


def parse_stacks(text: str, program: Program) -> tuple[Frame, ...]:
    """The frames of the thread that ran the program, from faulthandler's last dump; outermost first.

    A dump from inside torch's log of a failed collective comes too late: the collective, which has just lost
    its peer, has left the stack, and only the wrapper around it is there. An earlier dump,
    where there is one, knew it.
    """
    dumps = re.split(r"(?m)^(?=Fatal Python error|(?:Current thread|Thread) 0x|Stack \(most)", text)
    stacks = [
        tuple(
            Frame(m["file"], int(m["line"]), m["name"]) for m in map(_FRAME.match, block.splitlines()) if m
        )[::-1]
        for block in reversed(dumps)
    ]
    own = [frames for frames in stacks if any(program.owns(frame.file) for frame in frames)]
    in_time = [frames for frames in own if not _has_left_its_collective(frames)]
    of_the_program = [
        frames
        for frames in in_time
        if any(not program.name_of(f.file) and program.owns(f.file) for f in frames)
    ]  # the main thread: a thread that the program has started has its other files alone
    return next(iter(of_the_program or in_time or own), ())


def read_evidence(rank: int, rank_dir: Path, exit_code: int | None, program: Program, state: str) -> RankEnd:
    """How the rank with this directory ended; ``state`` is how the whole launch ended.

    ``exit_code``: how it ended by itself, a negative number being a signal; None where it was ended with the
    others (`child/agent.py` looks who has gone before it ends the rest). Raises ValueError where the record
    of an exception is none.
    """
    if (rank_dir / rank_folder.DONE).exists():
        return RankEnd(rank, "finished", exit_code=exit_code)
    record = rank_dir / rank_folder.FAILURE
    if record.exists():
        return from_record(rank, read_file(FailureRecord, record), program)
    stacks = rank_dir / rank_folder.STACKS
    text = stacks.read_text(errors="replace") if stacks.exists() else ""
    frames = parse_stacks(text, program)
    place = place_in(frames, program)
    if state != "failed":
        return RankEnd(rank, "stuck", place, frames=frames, exit_code=exit_code)
    if exit_code is None:
        return RankEnd(rank, "ended", place, frames=frames)
    return RankEnd(rank, "died", place, "died", death_in_words(exit_code), frames=frames, exit_code=exit_code)


def from_record(rank: int, record: FailureRecord, program: Program) -> RankEnd:
    """A `RankEnd` from the record that the rank wrote of its exception."""
    lost = bool(_PEER_GONE.search(record.message))
    return RankEnd(
        rank,
        "lost" if lost else "raised",
        place_in(record.frames, program),
        record.type,
        record.message,
        record.time,
        record.frames,
        record.cause,
        syntax=record.syntax,
    )


def death_in_words(exit_code: int | None) -> str:
    """Signal or code, and the likely cause."""
    if exit_code is None:
        return "it ended without a word"
    if exit_code >= 0:
        return f"it left with exit code {exit_code} (os._exit, or a library that ended the process)"
    name = signal.Signals(-exit_code).name
    likely = {
        "SIGKILL": "killed from outside: most often the machine ran out of memory, or a kill -9",
        "SIGSEGV": "a crash in compiled code",
        "SIGABRT": "compiled code gave up (a failed C++ assertion or an exception nobody caught)",
        "SIGBUS": "memory that is mapped but not there: /dev/shm or the disk is full",
        "SIGTERM": "ended from outside",
    }.get(name, "a signal from outside, or a crash in compiled code")
    return f"it died by {name} ({likely})"


@dataclass
class FirstFailed:
    """Who failed first (several when they failed together), who was carried along, who had finished."""

    first: list[RankEnd] = field(default_factory=list)
    others: list[RankEnd] = field(default_factory=list)


def judge(ends: Sequence[RankEnd]) -> FirstFailed:
    """Separate causes from effects.

    A rank that died by itself comes first: its peers' errors follow from it. Else the earliest
    exception that is not about a lost connection, together with those that came within a breath of it
    and are no later effect.
    """
    died = [end for end in ends if end.kind == "died"]
    raised = sorted((end for end in ends if end.kind == "raised"), key=lambda end: end.time)
    if died:
        first = died
    elif raised:
        limit = raised[0].time + SIMULTANEOUS_SECONDS
        first = sorted((end for end in raised if end.time <= limit), key=lambda end: end.rank)
    else:
        first = sorted((end for end in ends if end.kind == "lost"), key=lambda end: end.time)[:1]
    chosen = {end.rank for end in first}
    return FirstFailed(first, [end for end in ends if end.rank not in chosen])


def as_failure(end: RankEnd, program: Program) -> Failure:
    """The public form of a rank's end."""
    return Failure(
        end.rank,
        end.kind,
        end.error_type,
        end.message,
        end.place.line,
        end.place.function,
        "\n".join(trace_lines(end, program)),
        end.place.file,
    )


def trace_lines(end: RankEnd, program: Program) -> list[str]:
    """The traceback with the program's own lines in full and library frames counted."""
    if end.syntax:
        return [f"    line {end.syntax.line}: {end.syntax.source.strip()}"]
    lines: list[str] = []
    skipped = 0
    for frame, same in _runs(end.frames):
        if not program.owns(frame.file):
            skipped += same
            continue
        if skipped and lines:
            lines.append(f"    ({skipped} frame{'s' * (skipped > 1)} of libraries)")
        skipped = 0
        where = "" if frame.name == "<module>" else f", in {frame.name}"
        lines.append(f"    {program.name_of(frame.file) or program.label} line {frame.line}{where}")
        if frame.source:
            lines.append(f"        {frame.source.strip()}")
        if same > 1:
            lines.append("    (the same line, again and again)")
    if skipped and end.frames:
        last = end.frames[-1]
        frames = f"{skipped} frame{'s' * (skipped > 1)}"
        lines.append(f"    ... {frames} on, in {last.name} ({_short(last.file)}:{last.line})")
    return lines


def _runs(frames: Sequence[Frame]) -> list[tuple[Frame, int]]:
    """Frames with the number of times each stands in a row (recursion)."""
    return [(frame, len(list(group))) for frame, group in itertools.groupby(frames)]


def _short(file: str) -> str:
    return file.split("site-packages/")[-1] if "site-packages/" in file else file.rsplit("/", 1)[-1]
