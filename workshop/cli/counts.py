"""Numbers as people write them: 15T tokens, a batch of 4M; and what options may hold, no NaN and no -1.

Training sets are counted in powers of 1,000. Batches are powers of two, and "4M tokens" in a paper means
4 x 2**20 = 4,194,304 (Llama 3's, arXiv 2407.21783, table 4), so a batch is counted in powers of 1,024.
"""

from __future__ import annotations

import argparse
import math
import re

_COUNT = re.compile(r"\s*(?P<number>\d[\d_,]*\.?\d*)\s*(?P<suffix>[a-zA-Z]?)\s*")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "b": 3, "t": 4}


def parse_count(text: str, what: str, base: int = 1000) -> tuple[float, str]:
    """The number meant, and its suffix in lower case (empty without one).

    Raises:
        ValueError: ``text`` is no count; ``what`` says of what.
    """
    matched = _COUNT.fullmatch(text)
    if matched is None or matched["suffix"].lower() not in _POWERS:
        raise ValueError(f"{what} {text!r} is no count: write it like 512, 4M or 1.5T")
    suffix = matched["suffix"].lower()
    number = float(matched["number"].replace(",", "").replace("_", "")) * base ** _POWERS[suffix]
    if number <= 0:
        raise ValueError(f"{what} {text!r}: a count must be above zero")
    return number, suffix


def sequences(text: str, seq_len: int) -> int:
    """The sequences of a batch given as sequences (no suffix) or as tokens (K, M, G in powers of 1,024).

    Raises:
        ValueError: The tokens are no whole number of sequences; the nearest that are is named.
    """
    number, suffix = parse_count(text, "--global-batch", base=1024)
    count = number / seq_len if suffix else number
    if count != int(count) or count < 1:
        near = max(1, round(count))
        raise ValueError(
            f"--global-batch {text} is {count:,.2f} sequences of {seq_len:,} tokens; "
            f"the nearest that would do is {near} sequences ({near * seq_len:,} tokens)"
        )
    return int(count)


# ---------------------------------------------------------------------------- the types of options


def count(text: str) -> int:
    """An option's whole number of at least 1, for ``argparse``."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def positive(text: str) -> float:
    """An option's number above zero, for ``argparse``; infinity is none."""
    if (number := _finite(text)) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above zero")
    return number


def not_negative(text: str) -> float:
    """An option's number of zero or more, for ``argparse``; infinity is none."""
    if (number := _finite(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is below zero")
    return number


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no number that there is so much of")
    return number
