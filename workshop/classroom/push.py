"""What an instructor says to the room: a hint, a solution, or a sentence, to everybody or to one learner.

``pushed`` belongs to the room's owner, and so must every file in it: that is the signature. A learner reads
``all.json`` and the file that has the name of their own folder, which nobody else knows, as text that is
shown and never run. A learner cannot write there, so cannot push to others.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import Any

from workshop.classroom.files import Refused, opened_folder, read_json, write_json
from workshop.classroom.folder import EVERYBODY, FOR_ALL, PUSHED, Room
from workshop.classroom.names import check_folder_name, clean_text
from workshop.exercises import find
from workshop.site.owners import user_name

KINDS = ("hint", "solution", "note")
MOST_LETTERS = 20_000
MOST_KEPT = 100


@dataclass(frozen=True)
class Push:
    """One thing that was said. ``exercise`` is empty where it is about none."""

    number: int
    at: float
    kind: str
    exercise: str
    text: str

    def __str__(self) -> str:
        about = f" for {self.exercise}" if self.exercise else ""
        what = {"hint": "a hint", "solution": "a solution", "note": "a word"}[self.kind]
        return f"From your instructor, {what}{about}:\n{self.text}"

    def _repr_html_(self) -> str:
        from workshop.exercises.engine.prose import boxed, code_block, paragraph

        first, _, _ = str(self).partition("\n")
        body = code_block(self.text) if self.kind == "solution" else paragraph(self.text)
        return boxed(paragraph(first) + body, "#3366aa")

    __repr__ = __str__


def composed(exercise: str, *, hint: int = 0, solution: bool = False, text: str = "") -> tuple[str, str]:
    """(kind, words) of what is to be pushed; one of the three is given.

    hint: the exercise's own hint of that number, from 1.

    Raises:
        ValueError: none or several are given, or there is no such exercise or hint.
    """
    if bool(hint) + solution + bool(text) != 1:
        raise ValueError("give one of --hint N, --solution and --text WORDS")
    if text:
        if exercise:
            find(exercise)
        return ("hint" if exercise else "note"), text
    if not exercise:
        raise ValueError("--hint and --solution need --exercise NAME")
    wanted = find(exercise)
    if solution:
        return "solution", wanted.solution
    if not 1 <= hint <= len(wanted.hints):
        raise ValueError(f"{exercise} has hints 1 to {len(wanted.hints)}, not {hint}")
    return "hint", wanted.hints[hint - 1]


def push(room: Room, kind: str, text: str, *, exercise: str = "", to: str = "") -> Push:
    """Say it to everybody, or to the learner whose folder is called ``to``.

    Raises:
        ValueError: the room is another's, there is no such learner, or the words are too long.
    """
    if os.geteuid() != room.owner:
        raise ValueError(f"only {user_name(room.owner)}, whose room this is, can push to it")
    if len(text) > MOST_LETTERS:
        raise ValueError(f"a push has at most {MOST_LETTERS:,} letters, not {len(text):,}")
    if to and not (room.learners / check_folder_name(to)).is_dir():
        raise ValueError(f"no learner's folder is called {to}: `workshop room show {room.folder}` lists them")
    name = f"{to}.json" if to else EVERYBODY
    before = _read(room, name)
    pushed = Push(max((one.number for one in before), default=0) + 1, time.time(), kind, exercise, text)
    kept = [asdict(one) for one in [*before, pushed][-MOST_KEPT:]]
    write_json(room.folder / PUSHED / name, kept, FOR_ALL)
    return pushed


def pushed_to(room: Room, learner: str) -> dict[str, list[Push]]:
    """What was said to everybody and to this learner, by file; a file that may not be used says nothing.

    Raises:
        Refused: a file is there that the room's owner did not write.
    """
    return {name: _read(room, name) for name in (EVERYBODY, f"{check_folder_name(learner)}.json")}


def _read(room: Room, name: str) -> list[Push]:
    try:
        with opened_folder(room.folder / PUSHED, room.owner) as inside:
            if os.fstat(inside).st_mode & 0o022:
                raise Refused(f"others can write to {room.folder / PUSHED}")
            stored = read_json(inside, name, room.owner, most=4 * MOST_KEPT * MOST_LETTERS)
    except FileNotFoundError:
        return []
    return [each for each in map(_push, stored) if each] if isinstance(stored, list) else []


def _push(stored: Any) -> Push | None:
    if not isinstance(stored, dict) or stored.get("kind") not in KINDS:
        return None
    number, at, exercise, text = (stored.get(key) for key in ("number", "at", "exercise", "text"))
    if type(number) is not int or not isinstance(at, int | float) or not isinstance(text, str):
        return None
    about = clean_text(exercise, 80) if isinstance(exercise, str) else ""
    return Push(number, float(at), stored["kind"], about, clean_text(text, MOST_LETTERS, keep="\n\t"))
