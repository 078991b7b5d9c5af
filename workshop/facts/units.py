"""Bytes and seconds, read from text and written for people.

Two families of units go by almost the same names, and mixing them up costs 7 % at a gigabyte:

========  ==================  ========  ===================
decimal   bytes               binary    bytes
========  ==================  ========  ===================
kB        10**3               KiB       2**10 = 1,024
MB        10**6               MiB       2**20 = 1,048,576
GB        10**9               GiB       2**30
TB        10**12              TiB       2**40
PB        10**15              PiB       2**50
========  ==================  ========  ===================

PyTorch's messages count in GiB, disks and networks are sold in decimal units. So a bare "80G" is refused here
rather than guessed.

Source: IEC 80000-13 (binary prefixes), BIPM SI brochure, 9th edition (decimal prefixes).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

DECIMAL_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
BINARY_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}

_BYTES_PER_UNIT = {name.lower(): size for name, size in (DECIMAL_UNITS | BINARY_UNITS).items()}
_QUANTITY = re.compile(
    r"\s*(?P<number>[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(?P<unit>[a-z]*)\s*", re.IGNORECASE
)
_EXAMPLES = 'write it like "256MiB" (binary), "1.5 GB" (decimal) or 1048576 (bytes)'


def parse_bytes(size: str | int | float) -> int:
    """Bytes meant by ``size``: a number of bytes, or text such as ``"256MiB"`` or ``"1.5 GB"``.

    The arithmetic is exact; a fraction of a byte is dropped, so the result is never more than what was asked.

    Args:
        size: a whole number of bytes, or text. Units: B, kB, MB, GB, TB, PB (powers of 1,000) and KiB, MiB,
            GiB, TiB, PiB (powers of 1,024); capital letters do not matter, except that "Gb" is a gigabit and
            refused.

    Returns:
        Bytes, zero or more.

    Raises:
        ValueError: ``size`` is no size: empty, negative, not finite, of an unknown or an ambiguous unit.
    """
    if isinstance(size, str):
        exact = _parse_text(size)
    elif isinstance(size, bool) or not isinstance(size, int | float):
        raise ValueError(f"{size!r} is not a size: {_EXAMPLES}")
    elif isinstance(size, float) and not size.is_integer():
        raise ValueError(f"{size!r} is not a whole number of bytes: {_EXAMPLES}")
    else:
        exact = Fraction(size)
    if exact < 0:
        raise ValueError(f"{size!r} is negative: a size is zero or more bytes")
    return math.floor(exact)


def _parse_text(text: str) -> Fraction:
    quantity = _QUANTITY.fullmatch(text)
    if quantity is None:
        hint = "; the decimal mark is a point" if "," in text else ""
        raise ValueError(f"{text!r} is not a size{hint}: {_EXAMPLES}")
    return Fraction(Decimal(quantity["number"])) * _bytes_per_unit(quantity["unit"], text)


def _bytes_per_unit(unit: str, text: str) -> int:
    if unit[:1].isupper() and unit[1:] in ("b", "ib"):
        raise ValueError(f"{text!r}: {unit} is a unit of bits; for bytes write {unit[:-1]}B")
    size = _BYTES_PER_UNIT.get(unit.lower() or "b")
    if size is not None:
        return size
    prefix = unit.upper()
    if prefix.removesuffix("I") in ("K", "M", "G", "T", "P"):
        decimal, binary = f"{prefix[0]}B".replace("KB", "kB"), f"{prefix[0]}iB"
        raise ValueError(
            f"{text!r} is ambiguous: write {decimal} ({DECIMAL_UNITS[decimal]:,} bytes) "
            f"or {binary} ({BINARY_UNITS[binary]:,} bytes)"
        )
    known = ", ".join([*DECIMAL_UNITS, *list(BINARY_UNITS)[1:]])
    raise ValueError(f"{text!r}: unknown unit {unit!r}; the units are {known}")


def format_bytes(num_bytes: int | float, decimals: int = 1, binary: bool = True) -> str:
    """``num_bytes`` in the largest unit that keeps it at one or more: ``"256.0 MiB"``, ``"17 B"``.

    Args:
        num_bytes: bytes; a difference may be negative.
        decimals: digits after the point (whole bytes get none).
        binary: powers of 1,024 (KiB, MiB, ...) if true, powers of 1,000 (kB, MB, ...) if false.

    Raises:
        ValueError: ``num_bytes`` is not finite, or ``decimals`` is negative.
    """
    if not math.isfinite(num_bytes):
        raise ValueError(f"{num_bytes!r} is not a number of bytes")
    if decimals < 0:
        raise ValueError(f"decimals is {decimals}: it must be zero or more")
    units = list((BINARY_UNITS if binary else DECIMAL_UNITS).items())
    for (name, size), (_, next_size) in itertools.pairwise(units):
        digits = decimals if size > 1 else 0
        # Compared after rounding, or 1,048,575 bytes would read "1024.0 KiB".
        if round(abs(num_bytes) / size, digits) < next_size // size:
            return f"{num_bytes / size:,.{digits}f} {name}"
    name, size = units[-1]
    return f"{num_bytes / size:,.{decimals}f} {name}"


def format_seconds(seconds: float) -> str:
    """A duration to about three digits: ``"12.5 µs"``, ``"340 ms"``, ``"1.25 s"``, ``"2 min 5 s"``.

    From a minute on it gives two whole units: minutes and seconds, hours and minutes, days and hours.

    Raises:
        ValueError: ``seconds`` is not finite.
    """
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds!r} is not a duration")
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    if seconds == 0:
        return "0 s"
    for name, size in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)):
        # 999.5 of a unit reads as 1000 in three digits: then the next unit speaks.
        if seconds / size < 999.5:
            return f"{seconds / size:.3g} {name}"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    return _format_long(round(seconds))


def format_alike(seconds: Sequence[float]) -> tuple[list[str], str]:
    """Durations as numbers of one unit, and the unit, so that a column of them can be compared at a glance.

    The unit is the largest in which the shortest is at least one, from nanoseconds to days; hundreds of
    seconds stay seconds. ``([0.95, 61.2]) -> (["950", "61,200"], "ms")``.

    Raises:
        ValueError: one is not finite, or below zero.
    """
    for each in seconds:
        if not math.isfinite(each) or each < 0:
            raise ValueError(f"{each!r} is not a duration")
    shortest = min((each for each in seconds if each), default=1.0)
    unit, size = next(
        ((name, size) for name, size in _UNITS_OF_TIME if shortest >= size * (10 if name == "min" else 1)),
        ("ns", 1e-9),
    )
    return [_three_digits(each / size) for each in seconds], unit


_UNITS_OF_TIME = (
    ("days", 86_400.0),
    ("h", 3_600.0),
    ("min", 60.0),
    ("s", 1.0),
    ("ms", 1e-3),
    ("µs", 1e-6),
    ("ns", 1e-9),
)


def _three_digits(number: float) -> str:
    """At least three digits, and never an exponent: 1.25, 62, 61,200."""
    decimals = 0 if number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:,.{decimals}f}"


def _format_long(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes + (seconds >= 30), 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours + (minutes >= 30), 24)
    return f"{days:,} d {hours} h" if hours else f"{days:,} d"
