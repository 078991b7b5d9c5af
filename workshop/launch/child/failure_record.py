"""In a rank: an exception as data, so that the notebook can tell it in its own words.

The record holds the time (the monotonic clock is the same for all processes of a machine, so the
rank that failed first is known), the exception, and the frames from the outermost one of the
learner's own program inward.
"""

from __future__ import annotations

import json
import time
import traceback
from pathlib import Path
from typing import Any

from workshop.launch.child import descriptors
from workshop.launch.rank_folder import FAILURE

_MOST_FRAMES = 60
CLOCK = time.monotonic  # of one machine; ranks on several nodes set another


def describe(error: BaseException, program: str) -> dict[str, Any]:
    """``error`` as plain data; ``program`` is the file name of the learner's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((i for i, f in enumerate(frames) if f.filename == program), 0)
    kept = list(frames)[first:]
    if len(kept) > _MOST_FRAMES:  # endless recursion: both ends tell the story
        kept = kept[: _MOST_FRAMES // 2] + kept[-_MOST_FRAMES // 2 :]
    syntax = None
    if isinstance(error, SyntaxError):
        syntax = {"file": error.filename, "line": error.lineno, "source": (error.text or "").rstrip()}
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return {
        "time": CLOCK(),
        "type": type(error).__name__,
        "message": _message(error),
        "frames": [{"file": f.filename, "line": f.lineno, "name": f.name, "source": f.line} for f in kept],
        "cause": f"{type(cause).__name__}: {_message(cause)}" if cause is not None else None,
        "syntax": syntax,
    }


def _message(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return error.msg or str(error)
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 an exception whose own __str__ fails is still an exception to report
        return f"(its message cannot be shown: {type(broken).__name__} in __str__)"


def tellable(error: BaseException | None) -> BaseException | None:
    """``error`` itself, or a stand-in where its own ``__str__`` fails."""
    try:
        str(error)
    except Exception:  # noqa: BLE001 whatever a learner's __str__ may raise
        return RuntimeError(_message(error)) if error is not None else None
    return error


def write(error: BaseException, program: str, rank_dir: Path) -> None:
    """Leave the record in ``rank_dir``, whole or not at all."""
    descriptors.open_reserve()
    partial = rank_dir / (FAILURE + ".part")
    partial.write_text(json.dumps(describe(error, program)), encoding="utf-8")
    partial.rename(rank_dir / FAILURE)
