"""SIGINT on a rank that stays: KeyboardInterrupt in the learner's code, and in nobody else's.

A cell may swallow one: a destructor does, and so does a loop that catches everything. So it is raised again
until the cell ends, not by the notebook alone but also by the rank itself. Two ranks that call a broken group
again and again wake each other a hundred thousand times a second, and Linux (6.18, on two cores) was seen to
let no other program have a core meanwhile, for up to a minute. A rank that swallows them all is held where it
is, until it is ended.
"""

from __future__ import annotations

import signal
import time
from typing import Any

CELL_PREFIX = "<rank cell"  # of the file names under which a rank compiles the learner's cells
AGAIN_SECONDS = 0.4
HELD_AFTER_SECONDS = 3.5  # the notebook gives a rank up after four (`staying.recovery`)


class Interrupts:
    """The handler of SIGINT, and for a while of SIGALRM: KeyboardInterrupt in the cell, nothing out of it."""

    def __init__(self) -> None:
        self._first: float | None = None  # when this cell was first interrupted
        self._alarmed = False

    def __call__(self, _signum: int, frame: Any) -> None:
        """Handle the signal."""
        if not in_learners_code(frame):
            return
        now = time.monotonic()
        if self._first is None:
            self._first = now
            self._again_later()
        while now - self._first > HELD_AFTER_SECONDS:
            signal.pause()
        raise KeyboardInterrupt

    def cell_is_over(self) -> None:
        """Forget what the cell was sent; its alarm with it."""
        self._first = None
        if self._alarmed:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            self._alarmed = False

    def _again_later(self) -> None:
        """A timer of the process, where the cell has none of its own: a thread might get no turn."""
        used = signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0)
        if not used and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            self._alarmed = True
            signal.signal(signal.SIGALRM, self)
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS, AGAIN_SECONDS)


def in_learners_code(frame: Any) -> bool:
    """True where the interrupted frame lies in or under a cell, not in the kernel's own machinery."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(CELL_PREFIX):
            return True
        frame = frame.f_back
    return False


interrupt_learner = Interrupts()
