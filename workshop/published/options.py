"""A cell with options: a head, then `key=value`, parted by blanks.

    selective modules=core_attn+mlp layers=4
    lora targets=q+v base_bits=4.127

What has a column of its own stands in it; what few runs need stands as an option of the column it belongs
to, so that a table keeps few columns and loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from workshop.facts.checks import nearest
from workshop.predict.case import NotPredictable

Kinds = Mapping[str, str]
"""Option -> "int", "float", "bool", "str" or "tuple[str, ...]"."""


def split(column: str, cell: str, kinds: Kinds) -> tuple[str, dict[str, Any]]:
    """Head and options of a cell. Raises NotPredictable with column and value for what is not known."""
    head, *rest = cell.split() or [""]
    options: dict[str, Any] = {}
    for word in rest:
        key, equals, value = word.partition("=")
        if not equals or key not in kinds:
            listed = ", ".join(f"{name}=" for name in kinds) or "none"
            raise NotPredictable(
                f"{column} is {cell!r}: {word!r} is no option{nearest(key, kinds)} (known: {listed})"
            )
        options[key] = parse(f"{column}: {key}", value, kinds[key])
    return head, options


def parse(what: str, value: str, kind: str) -> Any:
    """A value of a kind from its text. Raises NotPredictable with what it is and its value."""
    try:
        if kind == "int":
            return int(value)
        if kind == "float":
            number = float(value)
            if number != number or number in (float("inf"), float("-inf")):
                raise ValueError
            return number
    except ValueError:
        words = "a whole number" if kind == "int" else "a number"
        raise NotPredictable(f"{what} is {value!r}, not {words}") from None
    if kind == "bool":
        if value.lower() not in ("yes", "no", "true", "false", "1", "0"):
            raise NotPredictable(f"{what} is {value!r}, not yes or no")
        return value.lower() in ("yes", "true", "1")
    return tuple(value.split("+")) if kind.startswith("tuple") else value


def written(value: Any) -> str:
    """A value as a cell holds it; `parse` gives it back."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "+".join(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def joined(head: str, options: Mapping[str, Any]) -> str:
    """A cell from its head and options."""
    return " ".join([head, *(f"{key}={written(value)}" for key, value in options.items())]).strip()


def kinds_of(kind: type, leave_out: tuple[str, ...]) -> dict[str, str]:
    """A dataclass's fields as options, by the words of their annotations."""
    return {f.name: str(f.type) for f in fields(kind) if f.name not in leave_out}


def changes(value: Any, base: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Fields of `value` that differ from those of `base`."""
    return {n: getattr(value, n) for n in names if getattr(value, n) != getattr(base, n)}


def defaults(kind: type, names: Mapping[str, str]) -> dict[str, Any]:
    """The usual values of a dataclass's fields."""
    return {f.name: f.default for f in fields(kind) if f.name in names and f.default is not MISSING}
