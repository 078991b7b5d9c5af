"""Exercise: the newest whole checkpoint among what killed runs and broken copies have left."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Wrong, number, shown

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
BATCH = 16
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


def _answer(reported: dict[str, Any]) -> Found:
    """Name of the folder, steps and sample that the function returned."""
    if reported["changed"]:
        raise Wrong("Something in the folder was changed. Only look: another process may still need it.")
    if reported["values"] is None:
        raise Wrong(
            f"It gave {reported['gave']}; wanted three values: a path or None, steps, a sample's number."
        )
    name, step, sample = reported["values"]
    return name, number(step, "the steps"), number(sample, "the sample")


def check(reports: list[dict[str, Any]]) -> str:
    """Six rooms, with whole and half checkpoints, then two in which nothing is whole."""
    (reported,) = reports
    answers = [_answer(one) for one in reported["rooms"]]
    _right_folders([name for name, _, _ in answers])
    for room, (name, step, sample) in zip(ROOMS, answers, strict=True):
        wanted = _steps(_newest(room))
        if step != wanted:
            raise Wrong(f"{name} holds {wanted} steps; it gave {shown(step)}.")
        if sample != BATCH * wanted:
            raise Wrong(
                f"After {wanted} steps of {BATCH} samples it would continue with sample {shown(sample)}; "
                f"wanted {BATCH * wanted}. {_of_the_sample(sample, wanted)}".rstrip()
            )
    for room, one in zip(EMPTY, reported["empty"], strict=True):
        _nothing(one, room)
    return f"{len(ROOMS)} rooms, and {len(EMPTY)} in which nothing is whole"


def _right_folders(answer: list[str | None]) -> None:
    wanted = [_newest(room) for room in ROOMS]
    if answer == wanted:
        return
    advice = next((s for rule, s in MISTAKES if answer == [rule(room) for room in ROOMS]), "")
    where = next(i for i, (f, w) in enumerate(zip(answer, wanted, strict=True)) if f != w)
    there = ", ".join(f"{name}{'' if full else ' (no .metadata)'}" for name, full in ROOMS[where])
    raise Wrong(f"Of {there} it chose {answer[where]}; wanted {wanted[where]}. {advice}".rstrip())


def _of_the_sample(sample: float, step: int) -> str:
    if sample == step:
        return "That is the number of the step; each step takes `batch` samples."
    if sample in (BATCH * step + 1, BATCH * (step + 1)):
        return "That leaves out a sample that no step has seen: the first sample has the number 0."
    return ""


def _nothing(reported: dict[str, Any], room: tuple[tuple[str, bool], ...]) -> None:
    """Wrong, unless the run begins at the beginning."""
    there = ", ".join(name for name, _ in room) or "an empty folder"
    if reported["error"]:
        raise Wrong(
            f"With {there} it failed: {reported['error']}. There is no whole checkpoint then, "
            "and the answer is None, 0, 0: the first start of a run finds nothing."
        )
    answer = _answer(reported)
    if re.fullmatch(r"None, 0(\.0)?, 0(\.0)?", ", ".join(map(str, answer))) is None:
        raise Wrong(f"With {there} it gave {answer}; there is no whole checkpoint, so wanted None, 0, 0.")
