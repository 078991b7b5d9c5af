"""SIGINT on a rank that stays: KeyboardInterrupt in the learner's code, and in nobody else's.

A cell may swallow one: a destructor does, and so does a loop that catches everything. So the notebook, when
it frees ranks, raises it again until the cell ends. It may be kept from doing so. Two ranks that go on with a
group which was cut wake each other a hundred thousand times a second, and Linux (6.18, on two cores) was seen
to let no other program have a core meanwhile, for up to a minute. So from the cut on the rank raises it
itself. One that swallows them all is held where it is, until the notebook ends it.

A cell that is interrupted and not cut, by a signal of its own for example, may do with that what it likes.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import Any, NoReturn

CELL_PREFIX = "<rank cell"  # of the file names under which a rank compiles the learner's cells
AGAIN_SECONDS = 0.4
STRAY_SECONDS = 1.0  # within which an alarm of the timer may still be on its way
HELD_AFTER_SECONDS = 3.5  # since the cut; a little before the notebook gives it up (`recovery.FREE_SECONDS`)


class Interrupts:
    """The handlers of SIGINT and SIGALRM on a rank, and the timer between a cut and the end of the cell."""

    def __init__(self) -> None:
        self._cut_at: float | None = None  # when the running cell's group was cut, where it insists since
        self._over_at = 0.0

    def install(self) -> None:
        """Handle both signals from now on; in the main thread."""
        signal.signal(signal.SIGINT, self.interrupt)
        signal.signal(signal.SIGALRM, self.alarm)

    def interrupt(self, _number: int, frame: Any) -> None:
        """KeyboardInterrupt in the cell; nothing when the cell is over."""
        if in_learners_code(frame):
            raise KeyboardInterrupt

    def insist(self) -> None:
        """Before the group is cut: interrupt the running cell until it is over. For the cutting thread.

        A timer of the process does it: a thread might get no turn. Where the cell has a timer or a handler of
        its own, that stays, and the notebook insists alone.
        """
        free = signal.getsignal(signal.SIGALRM) == self.alarm
        free = free and not any(signal.getitimer(signal.ITIMER_REAL))
        running = in_learners_code(sys._current_frames().get(threading.main_thread().ident or 0))
        if free and running and self._cut_at is None:
            self._cut_at = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS, AGAIN_SECONDS)

    def alarm(self, number: int, frame: Any) -> None:
        """The timer of `insist`; any other alarm does what it does in every program."""
        if self._cut_at is None:
            if time.monotonic() - self._over_at > STRAY_SECONDS:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.raise_signal(signal.SIGALRM)
        elif in_learners_code(frame) and time.monotonic() - self._cut_at > HELD_AFTER_SECONDS:
            _hold()
        else:
            self.interrupt(number, frame)

    def no_cell_runs(self) -> None:
        """A cell is over, or about to begin: what is left of `insist` would meet the next one."""
        if self._cut_at is not None:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            self._over_at = time.monotonic()
            self._cut_at = None


def _hold() -> NoReturn:
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        signal.pause()  # a request for stacks wakes it too


def in_learners_code(frame: Any) -> bool:
    """True where the interrupted frame lies in or under a cell, not in the kernel's own machinery."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(CELL_PREFIX):
            return True
        frame = frame.f_back
    return False


INTERRUPTS = Interrupts()
