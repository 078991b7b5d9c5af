"""Exercise: the newest whole checkpoint among what killed runs and broken copies have left."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, number, shown

NAME = "resume_from"
# Names, and whether `.metadata` is in the folder; written in this order, the last one last.
ROOMS: tuple[tuple[tuple[str, bool], ...], ...] = (
    (("step-6", True), ("step-12", True)),
    (("step-9", True), ("step-18", True), ("step-100", True)),
    (("step-10", True), ("step-30", True), ("step-20", True)),
    (("step-10", True), ("step-20", True), ("step-30", False)),
    (("step-10", True), ("step-20", True), ("step-30.part", True), ("step-40.part", False)),
    (("step-8", True), ("step-9", True), ("step-12", False), ("step-16.part", True)),
)
EMPTY: tuple[tuple[tuple[str, bool], ...], ...] = ((), (("step-4", False), ("step-8.part", True)))
Found = tuple[str | None, float, float]
Rule = Callable[[tuple[tuple[str, bool], ...]], str]


def _steps(name: str) -> int:
    return int(name.removeprefix("step-").removesuffix(".part"))


def _newest(room: tuple[tuple[str, bool], ...]) -> str:
    whole = [name for name, full in room if full and not name.endswith(".part")]
    return max(whole, key=_steps)


def _whole(room: tuple[tuple[str, bool], ...]) -> list[str]:
    return [name for name, full in room if full and not name.endswith(".part")]


MISTAKES: tuple[tuple[Rule, str], ...] = (
    (
        lambda room: max(_whole(room)),
        'The names were compared as texts: there "step-9" comes after "step-18".',
    ),
    (
        lambda room: _whole(room)[-1],
        "It took the folder that was written last. A copy changes that time; the number in the name stays.",
    ),
    (
        lambda room: max((name for name, _ in room if not name.endswith(".part")), key=_steps),
        "It took a folder without `.metadata`. That file is written last, so this folder is half a copy.",
    ),
    (
        lambda room: max((name for name, full in room if full), key=_steps),
        "It took a folder that was not renamed (`.part`). Its writer died before it said that all is there.",
    ),
)


def _lay(root: Path, room: tuple[tuple[str, bool], ...]) -> None:
    """The folders, each with a rank's file; times rise in the order given."""
    (root / "log").write_text("1 5.5 0.1\n")
    for place, (name, full) in enumerate(room):
        (root / name).mkdir()
        (root / name / "__0_0.distcp").write_bytes(b"shard")
        if full:
            (root / name / ".metadata").write_bytes(b"plan")
        os.utime(root / name, (1_000_000 + place, 1_000_000 + place))


def _answer(function: Any, room: tuple[tuple[str, bool], ...], batch: int) -> Found:
    """Name of the folder, steps and sample that the function returned."""
    with tempfile.TemporaryDirectory(prefix="resume-") as folder:
        root = Path(folder)
        _lay(root, room)
        before = sorted(path.relative_to(root) for path in root.rglob("*"))
        value = call(function, NAME, Call((root, batch)))
        if sorted(path.relative_to(root) for path in root.rglob("*")) != before:
            raise Wrong("Something in the folder was changed. Only look: another process may still need it.")
    if not (isinstance(value, tuple | list) and len(value) == 3):
        raise Wrong(f"It gave {shown(value)}; wanted three values: a path or None, steps, a sample's number.")
    path, step, sample = value
    name = None if path is None else Path(path).name
    return name, number(step, "the steps"), number(sample, "the sample")


def check(names: dict[str, Any]) -> str:
    """Six rooms, with whole and half checkpoints, then two in which nothing is whole."""
    function = names[NAME]
    found = [_answer(function, room, 16) for room in ROOMS]
    _right_folders([name for name, _, _ in found])
    for room, (name, step, sample) in zip(ROOMS, found, strict=True):
        wanted = _steps(_newest(room))
        if step != wanted:
            raise Wrong(f"{name} holds {wanted} steps; it gave {shown(step)}.")
        if sample != 16 * wanted:
            raise Wrong(
                f"After {wanted} steps of 16 samples it would continue with sample {shown(sample)}; "
                f"wanted {16 * wanted}. {_of_the_sample(sample, wanted)}".rstrip()
            )
    for room in EMPTY:
        _nothing(function, room)
    return f"{len(ROOMS)} rooms, and {len(EMPTY)} in which nothing is whole"


def _right_folders(found: list[str | None]) -> None:
    wanted = [_newest(room) for room in ROOMS]
    if found == wanted:
        return
    said = next((s for rule, s in MISTAKES if found == [rule(room) for room in ROOMS]), "")
    where = next(i for i, (f, w) in enumerate(zip(found, wanted, strict=True)) if f != w)
    there = ", ".join(f"{name}{'' if full else ' (no .metadata)'}" for name, full in ROOMS[where])
    raise Wrong(f"Of {there} it chose {found[where]}; wanted {wanted[where]}. {said}".rstrip())


def _of_the_sample(sample: float, step: int) -> str:
    if sample == step:
        return "That is the number of the step; each step takes `batch` samples."
    if sample in (16 * step + 1, 16 * (step + 1)):
        return "That leaves out a sample that no step has seen: the first sample has the number 0."
    return ""


def _nothing(function: Any, room: tuple[tuple[str, bool], ...]) -> None:
    """Wrong, unless the run begins at the beginning."""
    there = ", ".join(name for name, _ in room) or "an empty folder"
    try:
        found = _answer(function, room, 16)
    except (ValueError, TypeError, IndexError) as error:
        raise Wrong(
            f"With {there} it failed: {type(error).__name__}: {error}. There is no whole checkpoint then, "
            "and the answer is None, 0, 0: the first start of a run finds nothing."
        ) from None
    if re.fullmatch(r"None, 0(\.0)?, 0(\.0)?", ", ".join(map(str, found))) is None:
        raise Wrong(f"With {there} it gave {found}; there is no whole checkpoint, so wanted None, 0, 0.")
