"""Settings of a trainer's job file by name, and what became of each: none is passed over in silence.

A reader asks for the settings that it models, by name. What nobody asked for is either known to be without
effect on the prediction, and listed; or it is refused by name, because nobody here knows what it does::

    settings = Settings({"training.seq_len": 4096, "metrics.log_freq": 10, "training.new_thing": 3})
    settings.number("training.seq_len", 2048)           4096
    settings.without_effect(["metrics.*"])              ("metrics.log_freq = 10",)
    settings.refused(["metrics.*"])                     ("training.new_thing = 3: not known here",)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from workshop.facts.checks import LARGEST, check_choice
from workshop.facts.short_repr import short_repr

SWITCHES = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as ``"section.key"``; empty tables and nulls are left out, lists are values."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{name}.")
        elif value is not None:
            flat[name] = value
    return flat


class Settings:
    """Values by name. Asking for one marks it as understood.

    Args:
        values: the file's settings; `flattened` makes them of tables.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        self.asked: set[str] = set()
        self.notes: list[str] = []
        self.not_modelled: list[str] = []

    def has(self, name: str) -> bool:
        """Whether the file says anything."""
        self.asked.add(name)
        return name in self.values

    def value(self, name: str, default: Any = None) -> Any:
        """As it stands in the file."""
        self.asked.add(name)
        return self.values.get(name, default)

    def number(self, name: str, default: int = 0) -> int:
        """A whole number, 8 or "8"."""
        value = self.value(name, default)
        if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
            return int(value)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} must be a whole number, not {short_repr(value)}")
        return value

    def size(self, name: str, default: int = 0, also: Sequence[int] = ()) -> int:
        """A number of layers, ranks, tokens ...: at least 1 where the file says it, or one of ``also``."""
        number = self.number(name, default)
        if name in self.values and number not in also and not 1 <= number <= LARGEST:
            least = " or ".join(["a whole number of at least 1", *map(str, also)])
            raise ValueError(
                f"{name} must be {least}, and at most {LARGEST:,}, not {short_repr(self.value(name))}"
            )
        return number

    def real(self, name: str, default: float = 0.0) -> float:
        """A number."""
        value = self.value(name, default)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{name} must be a number, not {short_repr(value)}")
        return number

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false, also in the words of YAML and of command lines."""
        value = self.value(name, default)
        if isinstance(value, str) and value.lower() in SWITCHES:
            return SWITCHES[value.lower()]
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, not {short_repr(value)}")
        return value

    def word(self, name: str, default: str, choices: Iterable[str] = ()) -> str:
        """One of the choices, where there are any."""
        value = str(self.value(name, default))
        known = list(choices)
        if known:
            check_choice(name, value, known)
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """A list, or a text with commas or blanks between its words."""
        value = self.value(name, ())
        if isinstance(value, str):
            return tuple(value.replace(",", " ").split())
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{name} must be a list of words, not {short_repr(value)}")
        return tuple(map(str, value))

    def refuse(self, name: str, why: str) -> None:
        """This setting matters, and is not modelled."""
        self.asked.add(name)
        self.not_modelled.append(f"{name} = {short_repr(self.values.get(name))}: {why}")

    def refuse_where_set(self, names: Mapping[str, str]) -> None:
        """`refuse` each name that is switched on, with its reason."""
        for name, why in names.items():
            value = self.value(name)
            if value is True or (value and str(value).lower() not in ("false", "none", "0")):
                self.refuse(name, why)

    def note(self, text: str) -> None:
        """What a person should know of the translation."""
        self.notes.append(text)

    def without_effect(self, patterns: Sequence[str]) -> tuple[str, ...]:
        """Settings that nobody asked for and that change no prediction."""
        return tuple(f"{name} = {short_repr(value)}" for name, value in self._rest() if _fits(name, patterns))

    def refused(self, patterns: Sequence[str]) -> tuple[str, ...]:
        """What is not modelled, and what nobody here knows."""
        unknown = [
            f"{name} = {short_repr(value)}: not known here, so nobody can say what it changes"
            for name, value in self._rest()
            if not _fits(name, patterns)
        ]
        return (*self.not_modelled, *unknown)

    def _rest(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in self.values.items() if name not in self.asked]


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
