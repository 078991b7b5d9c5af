"""Exercise: the same batches, sooner.

Letters are counted as they are encoded; nothing is timed, so a busy machine cannot fail a right answer. To
encode the text once is right, and so is to encode each window and nothing else. A window may be a list or an
array.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

TEXT = "".join(chr(32 + 7 * place % 90) for place in range(600))
STARTS = [[(37 * row + 211 * column) % 535 for column in range(2)] for row in range(8)]
WINDOW = 65


def check(names: dict[str, Any]) -> str:
    """Eight rows of two windows each, letters counted."""
    counted = 0

    def encode(text: str) -> list[int]:
        nonlocal counted
        counted += len(text)
        return [ord(letter) for letter in text]

    def all_rows(*_: Any) -> list[Any]:
        return list(names["batches"](TEXT, encode, STARTS))

    if not callable(names["batches"]):
        raise Wrong(f"`batches` is {shown(names['batches'])}, not a function.")
    rows = call(all_rows, "batches", Call(("text", "encode", "starts")))
    _compare(rows)
    allowed = max(len(TEXT), len(STARTS) * len(STARTS[0]) * WINDOW)
    if counted > allowed:
        raise Wrong(
            f"The windows are right. But {counted:,} letters were encoded: the whole text "
            f"{counted / len(TEXT):.0f} times. Encode it before the loop begins."
        )
    return f"{len(STARTS)} rows of windows, and {counted:,} letters encoded, not {len(STARTS) * len(TEXT):,}."


def _compare(rows: list[Any]) -> None:
    """The windows against those of the slow version."""
    tokens = [ord(letter) for letter in TEXT]
    if len(rows) != len(STARTS):
        raise Wrong(f"`batches` yielded {len(rows)} of {len(STARTS)} rows.")
    for number, (row, starts) in enumerate(zip(rows, STARTS, strict=True)):
        wanted = [tokens[start : start + WINDOW] for start in starts]
        windows = _lists(row)
        if windows is None:
            raise Wrong(f"Row {number} is {shown(row)}; wanted {len(wanted)} windows of {WINDOW} tokens.")
        if windows != wanted:
            sizes = {len(window) for window in windows}
            raise Wrong(
                f"Row {number} is not the slow version's: {len(windows)} windows of {min(sizes, default=0)} "
                f"tokens; wanted {len(wanted)} of {WINDOW} tokens, beginning at {starts}."
            )


def _lists(row: Any) -> list[list[int]] | None:
    """A row of windows as lists of numbers; nothing, where it is not one."""
    try:
        return [[int(token) for token in window] for window in row]
    except (TypeError, ValueError):
        return None
