"""Refusing wrong input in words a person can act on.

An error says what is wrong, shows the value, and names what would do: an unknown name lists the known ones
and the nearest.  Nothing is guessed.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from typing import Any


def nearest_name(name: str, known: Iterable[str], cutoff: float = 0.4) -> str:
    """The known name that ``name`` begins, else the closest, or an empty string where none is close.

    ``cutoff`` says how alike two names must be, 0 to 1, as `difflib` counts.
    """
    lowered = {str(k).lower(): str(k) for k in known}
    begun = [one for one in lowered if _begins(str(name), one)]
    close = difflib.get_close_matches(
        str(name).lower(), begun or list(lowered), n=1, cutoff=0 if begun else cutoff
    )
    return lowered[close[0]] if close else ""


def _begins(name: str, known: str) -> bool:
    """Whether ``known`` goes on where ``name`` ends, signs aside: llama3 and llama-3-8b, not llama-30b."""
    letters = [re.escape(one) for one in name.lower() if one.isalnum()]
    return bool(letters) and re.match(r"[^a-z0-9]*".join(letters) + r"(?!\d)", known) is not None


def nearest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the known name closest to ``name``, or an empty string."""
    close = nearest_name(name, known)
    return f"; did you mean {close!r}?" if close else ""


def check_choice(what: str, value: Any, known: Iterable[Any]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``known``."""
    known = list(known)
    if value not in known:
        names = ", ".join(repr(k) for k in known)
        # "3" for 3: the kind is wrong, not the spelling
        near = "" if str(value) in map(str, known) else nearest(str(value), map(str, known))
        raise ValueError(f"unknown {what} {value!r}{near} (known: {names})")


def check_positive(what: str, value: Any) -> None:
    """Raise ``ValueError`` unless ``value`` is a whole number above zero."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what} must be a whole number of at least 1, not {value!r}")


LARGEST = 2**40
"""Of a batch and of a sequence: about a million million, so that counts of them stay numbers of a machine."""


def check_not_huge(what: str, value: int) -> None:
    """Raise ``ValueError`` for a whole number above `LARGEST`."""
    if value > LARGEST:
        shown = f"{value:,}" if value < 10**24 else f"a number of {value.bit_length():,} bits"
        raise ValueError(f"{what} must be at most {LARGEST:,}, not {shown}")


def check_not_negative(what: str, value: Any) -> None:
    """Raise ``ValueError`` unless ``value`` is a whole number of zero (not given) or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{what} must be a whole number, 0 (not given) or more, not {value!r}")


LONGEST_LINE = 16_384  # bytes; a batch script's line, or one value of a site


def check_one_line(what: str, text: str) -> None:
    """Raise ``ValueError`` unless ``text`` is one line of Unicode that a script and a terminal can hold.

    A line break would begin a line of its own, and with it a directive; a NUL ends the text for every program
    in C; what is no Unicode cannot be written; an escape steers the terminal that shows it.
    """
    shown = repr(text if len(text) <= 200 else text[:200] + "...")
    breaks = [c for c in text if c in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"]
    if breaks:
        raise ValueError(f"{what} {shown} has more than one line")
    if any((ord(c) < 32 and c != "\t") or 127 <= ord(c) < 160 for c in text):
        raise ValueError(f"{what} {shown} holds a control character: leave it out")
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} {shown} is no UTF-8: write it in letters that a script can hold") from None
    if length > LONGEST_LINE:
        raise ValueError(f"{what} {shown} has {length} bytes, and a line may have {LONGEST_LINE}")


def check_keys(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise ``ValueError`` when a table holds a key that is not known, naming the nearest."""
    known = list(known)
    for key in given:
        if key not in known:
            raise ValueError(
                f"unknown key {key!r} in {what}{nearest(key, known)} (known: {', '.join(sorted(known))})"
            )


def divisors(number: int) -> list[int]:
    """All divisors of ``number``, ascending."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    high = [number // d for d in reversed(low)]
    return low + (high[1:] if low and low[-1] == high[0] else high)


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of ``number`` closest to ``wanted`` (the smaller of two equally close)."""
    if wanted >= number:
        return number
    if wanted > math.isqrt(number):
        return min(divisors(number), key=lambda d: (abs(d - wanted), d))
    return next(d for off in range(wanted) for d in (wanted - off, wanted + off) if number % d == 0)
