"""Exercise: documents of different lengths into few rows of one length.

First fit decreasing is the bar, not the answer: whoever needs no more rows is right.
"""

from __future__ import annotations

from operator import index
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

NAME = "pack_documents"
CASES: tuple[tuple[list[int], int], ...] = (
    ([3, 9, 1, 4, 6, 2, 5, 10], 10),
    ([2, 2, 2, 5, 5, 5, 8, 8, 8, 3, 3], 10),
    ([7 * number % 61 + 3 for number in range(40)], 64),
    ([6, 6, 6], 6),
    ([], 8),
)


def _rows_needed(lengths: list[int], room: int) -> int:
    left: list[int] = []
    for length in sorted(lengths, reverse=True):
        fits = [row for row, free in enumerate(left) if free >= length]
        if not fits:
            left.append(room)
        left[fits[0] if fits else -1] -= length
    return len(left)


def check(names: dict[str, Any]) -> str:
    """Each document once, no row overfull, no more rows than first fit decreasing."""
    for lengths, room in CASES:
        made = Call((list(lengths), room))
        rows = call(names[NAME], NAME, made)
        many = f"pack_documents(<{len(lengths)} lengths>, {room})"
        written = many if len(lengths) > 12 else made.written(NAME)
        _whole(rows, lengths, room, written)
        needed = _rows_needed(lengths, room)
        if len(rows) > needed:
            raise Wrong(
                f"`{written}` takes {len(rows)} rows, more than first fit decreasing: that takes {needed}. "
                "Are the longest put in first, and is each tried in every row?"
            )
    return f"{len(CASES)} pools packed, each document once, and no row too many."


def _whole(rows: Any, lengths: list[int], room: int, written: str) -> None:
    """Wrong, unless rows are a division of the documents' numbers that fits."""
    if not isinstance(rows, list | tuple) or not all(isinstance(row, list | tuple) for row in rows):
        raise Wrong(f"`{written}` gave {shown(rows)}; wanted a list of rows, each a list of numbers.")
    seen: set[int] = set()
    for row in rows:
        for number in row:
            if number in seen:
                raise Wrong(f"In `{written}` {number} stands twice, or is not the number of a document.")
            if not hasattr(number, "__index__") or not 0 <= index(number) < len(lengths):
                raise Wrong(
                    f"In `{written}` {shown(number)} is not the number of a document: there are 0 to "
                    f"{len(lengths) - 1}. A row holds numbers of documents, not their lengths."
                )
            seen.add(number)
        total = sum(lengths[number] for number in row)
        if total > room:
            raise Wrong(f"In `{written}` the row {list(row)} holds {total} tokens; there is room for {room}.")
    if missing := sorted(set(range(len(lengths))) - seen):
        raise Wrong(f"In `{written}` document {missing[0]} is in no row.")
