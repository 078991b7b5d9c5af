"""Lay whole and half checkpoints on the disk, and note which one the learner's `resume_from` would take.

It runs on one rank, because there the files and the function are on the same disk wherever the answer is
judged: a grader's sandbox has a disk of its own.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workshop.exercises.engine.check import shown
from workshop.exercises.resume_from.check import BATCH, EMPTY, ROOMS
from workshop.launch.report import report


def try_on_rank(resume_from: Callable[[Path, int], Any]) -> None:
    """Report for each room what was returned, and whether something was changed there."""
    rooms = [_tried(resume_from, room) for room in ROOMS]
    empty = []
    for room in EMPTY:
        try:
            empty.append(_tried(resume_from, room))
        except (ValueError, TypeError, IndexError) as error:
            empty.append({"error": f"{type(error).__name__}: {error}"})
    report(check={"rooms": rooms, "empty": empty})


def _tried(function: Callable[[Path, int], Any], room: tuple[tuple[str, bool], ...]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="resume-") as folder:
        root = Path(folder)
        _lay(root, room)
        before = _everything(root)
        value = function(root, BATCH)
        tried: dict[str, Any] = {"changed": _everything(root) != before, "error": "", "gave": shown(value)}
    is_triple = isinstance(value, tuple | list) and len(value) == 3
    return tried | {"values": _plain(value) if is_triple else None}


def _lay(root: Path, room: tuple[tuple[str, bool], ...]) -> None:
    """The folders, each with a rank's file; times rise in the order given."""
    (root / "log").write_text("1 5.5 0.1\n")
    for place, (name, full) in enumerate(room):
        (root / name).mkdir()
        (root / name / "__0_0.distcp").write_bytes(b"shard")
        if full:
            (root / name / ".metadata").write_bytes(b"plan")
        os.utime(root / name, (1_000_000 + place, 1_000_000 + place))


def _everything(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in root.rglob("*"))


def _plain(value: Any) -> list[Any]:
    """The name of the folder and two numbers, as they can be reported."""
    path, *numbers = value
    name = None if path is None else Path(path).name
    return [name, *(one if isinstance(one, int | float) else shown(one) for one in numbers)]
