"""Reading ``data/*.toml``: plain files that anyone can read and extend.

``[name]``, then the fields of a dataclass. A key that the dataclass does not have is refused, so that a
typing error cannot become a silent default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from workshop.facts.checks import check_keys, nearest

T = TypeVar("T")

# What a field's annotation asks of a table's value; fields of other types check themselves.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "str": ((str,), "text in quotes"),
    "bool": ((bool,), "true or false"),
}


@cache
def table(name: str) -> dict[str, Any]:
    """One file of ``data/`` as nested dictionaries, e.g. ``table("devices")``."""
    return tomllib.loads((resources.files("workshop.facts") / "data" / f"{name}.toml").read_text("utf-8"))


def from_table(kind: type[T], entry: Mapping[str, Any], what: str) -> T:
    """Build a dataclass from a table, refusing unknown keys and values of a wrong type, and telling which
    required keys are missing.
    """
    annotations = {f.name: str(f.type) for f in fields(kind)}  # type: ignore[arg-type]
    check_keys(what, entry, annotations)
    for key, value in entry.items():
        check_kind(f"{what}: {key}", value, annotations[key])
    try:
        return kind(**entry)
    except TypeError as error:
        raise ValueError(f"{what} is incomplete: {error}") from None


def check_kind(what: str, value: Any, annotation: str) -> None:
    """Raise ``ValueError`` when ``value`` is not what a field annotated ``int``, ``str`` ... can hold."""
    types, words = _KINDS.get(annotation, ((object,), ""))
    if not isinstance(value, types) or (isinstance(value, bool) and annotation in ("int", "float")):
        raise ValueError(f"{what} must be {words}, not {value!r}")


def lookup(name: str, names: Mapping[str, Any], what: str) -> Any:
    """The entry called ``name`` (any case, ``_`` for ``-``); an unknown name gets its nearest."""
    check_kind(what, name, "str")
    folded = {key.lower().replace("_", "-"): key for key in names}
    key = folded.get(name.lower().replace("_", "-"))
    if key is None:
        raise ValueError(f"unknown {what} {name!r}{nearest(name, names)} (known: {', '.join(sorted(names))})")
    return names[key]
