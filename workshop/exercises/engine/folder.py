"""An exercise's folder, read: every key of its settings known, every answer under its name.

Whoever writes an exercise makes slips in its settings; each is told with the file, what is wrong and what
would be right, instead of an exercise that quietly lacks a hint.
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from workshop.exercises.engine.answers import ANSWERS, read_answers
from workshop.exercises.engine.exercise import Exercise

SETTINGS = "exercise.toml"

# Key -> what it must be, in words; those of the second group may be left out.
_NEEDED = {
    "title": "a text",
    "lesson": "a text",
    "place": "a whole number",
    "question": "a text",
    "hints": "a list of texts",
    "shows": "a text",
}
_OPTIONAL = {"defines": "a list of texts", "ranks": "a whole number", "needs": "a list of texts"}
_KNOWN = {**_NEEDED, **_OPTIONAL}


def read_exercise(folder: Path) -> Exercise:
    """The exercise that a folder holds.

    Raises:
        ValueError: the settings have a key that is not known, lack one, or hold something else under it; or
            the answers are not told apart (`engine.answers.read_answers`). Says which, and what is known.
    """
    file = folder / SETTINGS
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{_short(file)} is not TOML: {error}.") from None
    _check_keys(file, settings)
    answers = read_answers(folder / ANSWERS)
    return Exercise(
        folder=folder,
        title=_unwrapped(settings["title"]),
        lesson=settings["lesson"],
        place=settings["place"],
        question=settings["question"].strip(),
        hints=tuple(map(_unwrapped, settings["hints"])),
        shows=_unwrapped(settings["shows"]),
        defines=tuple(settings.get("defines", [folder.name])),
        wrong_answers=answers["wrong"],
        other_answers=answers["other"],
        ranks=settings.get("ranks"),
        needs=tuple(settings.get("needs", [])),
    )


def _short(file: Path) -> str:
    """The end of a path that says which exercise it is of."""
    return f"{file.parent.name}/{file.name}"


def _check_keys(file: Path, settings: dict[str, Any]) -> None:
    for key, value in settings.items():
        if key not in _KNOWN:
            near = get_close_matches(key, _KNOWN, 1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            meant = f" Answers and their messages are in {ANSWERS}." if key == "wrong" else meant
            raise ValueError(f"{_short(file)}: {key!r} is no key.{meant} Known: {', '.join(_KNOWN)}.")
        if not _is(value, _KNOWN[key]):
            raise ValueError(f"{_short(file)}: {key} is {value!r}; wanted {_KNOWN[key]}.")
    if not settings.get("lesson", "0")[:1].isdigit():
        raise ValueError(f"{_short(file)}: lesson is {settings['lesson']!r}; wanted a notebook, as '22_ddp'.")
    missing = [key for key in _NEEDED if key not in settings]
    if missing:
        raise ValueError(
            f"{_short(file)} lacks {', '.join(missing)}. Needed: {', '.join(_NEEDED)}; "
            f"may be left out: {', '.join(_OPTIONAL)}."
        )


def _is(value: Any, wanted: str) -> bool:
    if wanted == "a list of texts":
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return type(value) is {"a text": str, "a whole number": int}[wanted]


def _unwrapped(text: str) -> str:
    """One paragraph: the file's line breaks are not the learner's."""
    return " ".join(text.split())
