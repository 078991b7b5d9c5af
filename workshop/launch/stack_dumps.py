"""Ask a rank where it is: it writes its main thread's stack into its file ``stacks``.

Two signals, because no single one is right. `ASK` is answered by a handler in Python, which runs between two
instructions, where frames can be read. A thread that is in C (in a collective, a lock, a long product) comes
to no such place. It gets `ASK_IN_C`, which faulthandler answers in the signal handler itself. A thread that
runs Python must not get that one: a call that is just being made has a frame half set up, and reading it is a
segmentation fault. With faulthandler alone one question in some dozens or hundreds ended a rank that did
nothing but call functions, on Python 3.11, 3.12 and 3.13 (`tests/launch/test_stack_dumps.py`).

Whether a thread is in C is told by Linux: it sleeps, or it has computed for a while without answering.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

ASK = signal.SIGUSR2
ASK_IN_C = signal.SIGURG  # Linux ignores it where nobody listens yet

ANSWER_SECONDS = 0.05  # what runs Python has answered by then, where it had its turn on a core
# Hundredths of a second on a core. Between two instructions of Python lies no such time.
TICKS_IN_C = 3


class Signalled(Protocol):
    """A rank's process, here or on another node."""

    @property
    def pid(self) -> int:
        """Its number."""

    def signal(self, number: int) -> bool:
        """Send a signal; False when it is gone."""


@dataclass
class Question:
    """One rank that was asked, by `ASK`; ``again`` asks once more where that is safe and needed."""

    process: Signalled
    stacks: Path
    is_here: bool = True
    size: int = 0
    ticks: int | None = None
    asked_at: float = field(default_factory=time.monotonic)
    is_asked_in_c: bool = False

    def __post_init__(self) -> None:
        self.size = self.stacks.stat().st_size
        self.ticks = main_thread(self.process.pid)[1] if self.is_here else None

    @property
    def answered(self) -> bool:
        """Whether it has written something since."""
        return self.stacks.stat().st_size > self.size

    def again(self) -> None:
        """`ASK_IN_C`, once, if no answer came in time and the thread is in C (another node looks itself)."""
        if self.is_asked_in_c or time.monotonic() < self.asked_at + ANSWER_SECONDS or self.answered:
            return
        if not self.is_here or is_in_c(self.process.pid, self.ticks):
            self.is_asked_in_c = True
            self.process.signal(ASK_IN_C)


def main_thread(pid: int) -> tuple[str, int]:
    """The state of a process's main thread ("R", "S" ...) and its hundredths of a second on a core.

    ("", 0) where it is gone.
    """
    try:
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    return fields[0], int(fields[11]) + int(fields[12])


def is_in_c(pid: int, ticks: int | None = None) -> bool:
    """Whether a main thread that has not answered is in C; ticks: of `main_thread`, when it was asked."""
    state, now = main_thread(pid)
    return state in ("S", "D") or (ticks is not None and now >= ticks + TICKS_IN_C)


def request_dumps(ranks: Mapping[Path, Signalled], patience: float) -> None:
    """Have ranks of this node write where they are, each into its file; wait until all have, or so long."""
    waiting = []
    for stacks, process in ranks.items():
        question = Question(process, stacks)
        if process.signal(ASK):
            waiting.append(question)
    deadline = time.monotonic() + patience
    while waiting and time.monotonic() < deadline:
        time.sleep(0.01)
        waiting = [question for question in waiting if not question.answered]
        for question in waiting:
            question.again()
