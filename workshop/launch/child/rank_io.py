"""A rank's output: one file per rank, whole lines, in the order in which they were written.

Files, not pipes: a rank that prints 200,000 lines never waits for a reader, a reader that is slow
never loses a line, and what a rank printed survives its death. Standard output and standard error
share the file (opened for appending), so that a print and a warning stand in the order in which
they happened. A progress bar redraws itself with carriage returns; it goes to a second file, which
is shown while the cell runs and never becomes part of the text.

What one `print` says in several lines is written at once, each line but the last marked as going on
(`output.GOES_ON`, which a terminal does not show): the reader keeps them together.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from workshop.launch import stack_dumps
from workshop.launch.output import GOES_ON
from workshop.launch.rank_folder import BARS, LOG, STACKS

_UP = "\x1b[A"  # the cursor goes up: several bars, one below the other
_GOES_ON = GOES_ON.decode() + "\n"
_LONGEST_BLOCK = 100  # lines; what is longer is no table for one look
_LONGEST_WAIT = 1 << 16  # characters kept back until their line ends


_CAPTURED: list[RankStream] = []  # this rank's two streams, once `capture` has made them
_STACKS: list[io.FileIO] = []  # this rank's file of stacks, once `dump_stacks_on_signal` has opened it


class RankStream(io.TextIOBase):
    """Text stream over a file descriptor: whole lines at once, progress bars aside.

    ``spare`` is a second descriptor of the same file. A program that closes 1 or 2 would else hand
    that number to the next socket that is opened, and its prints to the other end of it.
    """

    def __init__(self, descriptor: int, bars: int, spare: int):
        self._descriptor = descriptor
        self._bars = bars
        self._spare = spare
        self._line = ""
        self._after_bar = False
        self._let_out = False  # the beginning of the present line, by a flush

    encoding = "utf-8"
    errors = "backslashreplace"

    def writable(self) -> bool:
        """True: it is for output."""
        return True

    def fileno(self) -> int:
        """The descriptor below, for faulthandler and subprocesses."""
        return self._descriptor

    def write(self, text: str) -> int:
        """Take text in; what ends with its line goes out at once."""
        if "\r" not in text and _UP not in text:
            self._say(text)
            return len(text)
        *lines, last = text.replace("\r\n", "\n").split("\n")
        for line in [*(line + "\n" for line in lines), last]:
            if "\r" in line or _UP in line:
                self._draw(line)
            else:
                self._say(line)
        return len(text)

    def _say(self, text: str) -> None:
        if self._after_bar and not self._line and not text.strip("\n"):
            if text:  # the newline with which a bar closes
                self._after_bar = False
                os.write(self._bars, b"\n")
            return
        self._line += text
        if self._line.endswith("\n"):
            self._after_bar = False
            self.flush()
        elif len(self._line) > _LONGEST_WAIT:
            self.flush()

    def _draw(self, text: str) -> None:
        """A state of a bar. What stands in its line already is part of it: a return may end it, too."""
        if self._let_out:  # the reader drops what a return overwrites
            self._put("\r")
        drawn, self._line = self._line + text, ""
        os.write(self._bars, drawn.encode("utf-8", "backslashreplace"))
        self._after_bar = not text.endswith("\n")

    def flush(self) -> None:
        """Let out what is there, an unfinished line too."""
        if self._line:
            text, self._line = self._line, ""
            self._let_out = not text.endswith("\n")
            inner = text.count("\n", 0, -1)
            self._put(text.replace("\n", _GOES_ON, inner) if 0 < inner < _LONGEST_BLOCK else text)

    def reopen(self) -> None:
        """Give the program back the descriptor that it closed."""
        try:
            os.fstat(self._descriptor)
        except OSError:
            os.dup2(self._spare, self._descriptor)

    def _put(self, text: str) -> None:
        self.reopen()
        data = text.encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(self._descriptor, data) :]


def capture(rank_dir: Path) -> None:
    """Send this process's output to ``rank_dir``: Python's streams, C++'s, and its children's."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(rank_dir / LOG, flags, 0o600)
    bars = os.open(rank_dir / BARS, flags, 0o600)
    os.set_inheritable(bars, False)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.set_inheritable(log, False)
    os.close(nothing)
    stdout: Any = RankStream(1, bars, log)
    stderr: Any = RankStream(2, bars, log)
    sys.stdout, sys.stderr = stdout, stderr
    vars(sys).update(__stdout__=stdout, __stderr__=stderr)
    _CAPTURED[:] = [stdout, stderr]


def settle() -> None:
    """A program or a cell is over: let unfinished lines out, and put closed descriptors back."""
    for stream in _CAPTURED:  # not sys.stdout: a cell may have put anything there, None too
        stream.flush()
        stream.reopen()
    for name, stream in zip(("stdout", "stderr"), _CAPTURED, strict=False):
        if getattr(sys, name) is None:  # ipykernel flushes it before each answer, and would give none
            setattr(sys, name, stream)


def dump_stacks_on_signal(rank_dir: Path) -> None:
    """Write the main thread's stack to ``stacks`` when asked (`stack_dumps`) or ended; on a crash, all.

    `stack_dumps.ASK` is answered between two instructions of Python. `ASK_IN_C` and SIGTERM are answered by
    faulthandler in the signal handler itself, so also when the main thread is inside a collective or holds
    the interpreter's lock. Linux gives a signal to the main thread, which may read its own frames. The frames
    of the other threads change while they are read: asking for those too ended two ranks in a hundred with a
    SIGSEGV of our own making. (A rank that runs Python as SIGTERM comes may end by SIGSEGV instead: see
    `stack_dumps`. And a thread of C++ that is just starting may take the signal before the main thread does:
    it has no Python frames, and nothing is written. Of ranks that ended themselves right after
    `init_process_group`, on a busy machine, two in six thousand left an empty file. They end in any case.)

    Who asks looks for the file first. It is there a moment before who answers is, and a signal that nobody
    expects ends a process: until then it is ignored.
    """
    signal.signal(stack_dumps.ASK, signal.SIG_IGN)
    file = (rank_dir / STACKS).open("ab", buffering=0)  # faulthandler keeps it open
    faulthandler.enable(file=file)
    faulthandler.register(stack_dumps.ASK_IN_C, file=file, all_threads=False)
    _STACKS[:] = [file]
    dump_when_ended()

    def answer(_number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):  # a full disk is no fault of the program's
            file.write(_as_faulthandler(frame))

    signal.signal(stack_dumps.ASK, answer)
    signal.siginterrupt(stack_dumps.ASK, False)  # what waits in C goes on waiting


def dump_when_ended() -> None:
    """On SIGTERM write the stack, then end (or do what the program has set for it)."""
    if _STACKS:
        faulthandler.register(signal.SIGTERM, file=_STACKS[0], all_threads=False, chain=True)


def _as_faulthandler(frame: FrameType | None) -> bytes:
    """The stack below ``frame``, in the form of faulthandler's dumps."""
    lines = ["Stack (most recent call first):"]
    while frame is not None:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno or 0} in {code.co_name}')
        frame = frame.f_back
    return ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")


def no_keyboard(what: str) -> Any:
    """A replacement for `input` and `breakpoint` that says at once why they cannot work on a rank."""

    def refuse(*_args: Any, **_options: Any) -> None:
        raise RuntimeError(
            f"{what} cannot work on a rank: the ranks share one keyboard, and it is not theirs. "
            "Print the value, or look at it in a %%ranks cell."
        )

    return refuse
