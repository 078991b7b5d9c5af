"""Configurations that go wrong in silence: what is wrong, what happens instead, and the cure.

An error message is a kindness. The worst configurations run: on the wrong number of processes, with nothing
sharded, with gradients clipped that nobody asked to clip. Four kinds are told apart:

silent   it runs, and does something else than the file says
stops    it ends with an error, at the start or (worse) at the end
costly   it does what it says, at a price that the file does not show
depends  right under one program and wrong under another (`Overrides.program`): no mistake until that is known

Each rule is held by a test against the library itself: accelerate 1.15, DeepSpeed 0.19.8, transformers 5.23
load the file and refuse, ignore or misbehave as told (`tests/configs/test_truth.py`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workshop.facts.checks import check_choice
from workshop.facts.short_repr import short_repr

KINDS = ("silent", "stops", "costly", "depends")
COMMENT = ("_", "#", "//", "comment")
"""How keys begin that people write because JSON has no comments."""


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong with a file.

    ``key``: where, ``"fsdp_config.fsdp_version"``; ``kind``: one of `KINDS`; ``what`` happens; ``cure``.
    """

    key: str
    kind: str
    what: str
    cure: str

    def __post_init__(self) -> None:
        check_choice("kind of mistake", self.kind, KINDS)

    @property
    def is_certain(self) -> bool:
        """Whether it is one, whoever reads the file."""
        return self.kind != "depends"

    def __str__(self) -> str:
        return f"{self.kind}: {self.key}: {self.what}\n    cure: {self.cure}"


def kind_among(readers: frozenset[str], affected: set[str], kind: str) -> str:
    """``kind`` where all who may read the file are affected, ``"depends"`` where some are, "" where none
    is."""
    hit = readers & affected
    return "" if not hit else kind if hit == readers else "depends"


def truth(value: Any) -> bool:
    """A switch as these files write it: true, "true", "yes", 1."""
    return str(value).strip().lower() in ("true", "1", "yes", "y", "t", "on")


def whole_number(value: Any) -> int | None:
    """A count as these files write it, 8 or "8"; None for anything else, true and 8.0 included."""
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    return value if type(value) is int else None


def table_at(config: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The settings at ``"a.b"``; empty where there are none.

    Raises:
        ValueError: What stands there is no table.
    """
    place: Any = config
    for name in path.split("."):
        place = place.get(name)
        if place is None:
            return {}
        if not isinstance(place, Mapping):
            raise ValueError(f"{path} holds {short_repr(place)}; it must be a table of names and values")
    return place


def is_comment(key: str) -> bool:
    """Whether a key is a remark to people."""
    return key.startswith(COMMENT)


def close_name(name: str, known: Sequence[str]) -> str:
    """The known name of which this one is a misspelling, or ""; stricter than ``nearest_name``, which
    guesses."""
    close = difflib.get_close_matches(name.lower(), [other.lower() for other in known], n=1, cutoff=0.8)
    return next(other for other in known if other.lower() == close[0]) if close else ""


def misspelt(section: Mapping[str, Any], where: str, known: Sequence[str], prefix: str = "") -> list[Mistake]:
    """Mistakes for keys of a section that nobody reads (``prefix`` is put before keys that lack it)."""
    mistakes = []
    for key, value in section.items():
        full = key if key.startswith(prefix.rstrip("_")) else prefix + key
        if full in known or is_comment(key):
            continue
        meant = close_name(full, known)
        mistakes.append(
            Mistake(
                f"{where}.{key}" if where else key,
                "silent",
                f"nobody reads this key: {short_repr(value)} has no effect",
                f"write {meant!r}, if that was meant, or take it out" if meant else "take it out",
            )
        )
    return mistakes
