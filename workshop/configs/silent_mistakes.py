"""Configurations that go wrong in silence: what is wrong, what happens instead, and the cure.

An error message is a kindness. The worst configurations run: on the wrong number of processes, with nothing
sharded, with gradients clipped that nobody asked to clip, or for a week until the weights cannot be saved.
Three kinds are told apart:

silent   it runs, and does something else than the file says
stops    it ends with an error, at the start or (worse) at the end
costly   it does what it says, at a price that the file does not show

Each rule was seen on accelerate 1.15.0 and DeepSpeed 0.19.8. `mistakes_accelerate` and `mistakes_deepspeed`
hold the rules; each takes the file as a dictionary and what else is known, and gives `Mistake` s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workshop.facts.checks import check_choice, nearest_name

KINDS = ("silent", "stops", "costly")


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

    def __str__(self) -> str:
        return f"{self.kind}: {self.key}: {self.what}\n    cure: {self.cure}"


def truth(value: Any) -> bool:
    """A switch as these files write it: true, "true", 1."""
    return str(value).strip().lower() in ("true", "1", "yes")


def misspelt(section: Mapping[str, Any], where: str, known: Sequence[str], prefix: str = "") -> list[Mistake]:
    """Mistakes for keys of a section that nobody reads (``prefix`` is put before keys that lack it)."""
    found = []
    for key, value in section.items():
        full = key if key.startswith(prefix) else prefix + key
        if full in known:
            continue
        meant = nearest_name(full, known)
        found.append(
            Mistake(
                f"{where}.{key}" if where else key,
                "silent",
                f"nobody reads this key: {value!r} has no effect",
                f"write {meant!r}, if that was meant, or take it out" if meant else "take it out",
            )
        )
    return found
