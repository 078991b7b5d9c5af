"""Values that somebody else wrote, as a message can hold them: no message is as long as its cause."""

from __future__ import annotations

import reprlib
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _SHORT.maxfrozenset = 20
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 200


def short_repr(value: Any, most: int = 300) -> str:
    """``repr`` of a value in at most ``most`` characters, however deep the value is."""
    try:
        text = _SHORT.repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return f"a {type(value).__name__} too long to be written"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def writable(text: str) -> str:
    """A text that each stream and message takes: half of a surrogate pair is written as its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shortened(text: str, most: int) -> str:
    """A text, of which the middle is left out where it is longer than ``most``."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    return (
        f"{text[:head]} ... ({len(text) - most:,} characters left out) ... {text[len(text) - most + head :]}"
    )
