"""In a rank: an exception as data, so that the notebook can tell it in its own words.

The record holds the time (the monotonic clock is the same for all processes of a machine, so the
rank that failed first is known), the exception, and the frames from the outermost one of the
learner's own program inward.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from workshop.facts.short_repr import shortened, writable
from workshop.launch.child import descriptors, rank_io
from workshop.launch.failures import FailureRecord, Frame, WrongSyntax
from workshop.launch.messages import write_file
from workshop.launch.rank_folder import FAILURE

_MOST_FRAMES = 60
_LONGEST_MESSAGE = 10_000  # characters
CLOCK = time.monotonic  # of one machine; ranks on several nodes set another


def describe(error: BaseException, program: str) -> FailureRecord:
    """``error`` as plain data; ``program`` is the file name of the learner's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((i for i, f in enumerate(frames) if f.filename == program), 0)
    kept = list(frames)[first:]
    if len(kept) > _MOST_FRAMES:  # endless recursion: both ends tell the story
        kept = kept[: _MOST_FRAMES // 2] + kept[-_MOST_FRAMES // 2 :]
    syntax = None
    if isinstance(error, SyntaxError):
        syntax = WrongSyntax(error.filename, error.lineno, (error.text or "").rstrip())
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return FailureRecord(
        CLOCK(),
        type(error).__name__,
        _message(error),
        tuple(Frame(f.filename, f.lineno or 0, f.name, f.line or "") for f in kept),
        f"{type(cause).__name__}: {_message(cause)}" if cause is not None else None,
        syntax,
    )


def _message(error: BaseException) -> str:
    try:
        text = error.msg or str(error) if isinstance(error, SyntaxError) else str(error)
        return shortened(writable(text), _LONGEST_MESSAGE)
    except Exception as broken:  # noqa: BLE001 an exception whose own __str__ fails is still an exception to report
        return f"(its message cannot be shown: {type(broken).__name__} in __str__)"


def tellable(error: BaseException | None) -> BaseException | None:
    """``error`` itself, or a stand-in where its own ``__str__`` fails, or gives what no message can hold."""
    if error is None:
        return None
    message = _message(error)
    try:
        text = str(error)
        is_told = text == shortened(writable(text), _LONGEST_MESSAGE)
    except Exception:  # noqa: BLE001 whatever a learner's __str__ may raise
        is_told = False
    return error if is_told else RuntimeError(message)


def write(error: BaseException, program: str, rank_dir: Path) -> None:
    """Leave the record in ``rank_dir``, whole or not at all."""
    descriptors.open_reserve()
    with _ended_only_afterwards():
        write_file(rank_dir / FAILURE, describe(error, program))


@contextlib.contextmanager
def _ended_only_afterwards() -> Iterator[None]:
    """SIGTERM takes effect when this block is left.

    Where a rank has died, the others' collectives raise while the agent is about to end them. A rank that
    is ended before its record is written could only say that it was writing one.
    """
    if threading.current_thread() is not threading.main_thread():  # Python lets no other set a handler
        yield
        return
    asked_to_end: list[int] = []
    faulthandler.unregister(signal.SIGTERM)  # the record says where it was
    before = signal.signal(signal.SIGTERM, lambda number, _frame: asked_to_end.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if asked_to_end:
            os.kill(os.getpid(), signal.SIGTERM)
        rank_io.dump_when_ended()
