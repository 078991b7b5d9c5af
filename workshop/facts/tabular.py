"""Rows of words that show themselves: aligned text in a terminal, an HTML table in a notebook."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_NUMBER = re.compile(r"[-+]?[\d,.]+(\s?[%×x]|\s[A-Za-zµ/]+)?|-|")


@dataclass(frozen=True, repr=False)
class Table:
    """``rows`` of words under ``head``; ``caption`` stands above them and ``note`` below.

    A column whose every cell is a number (with or without a unit) is set to the right. ValueError when a row
    is shorter or longer than the head.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"a row has {len(row)} cells and the head {len(self.head)}: {list(row)}")

    def __str__(self) -> str:
        lines = [list(self.head), *map(list, self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        right = self._right()

        def join(line: Sequence[str]) -> str:
            cells = zip(line, widths, right, strict=True)
            return "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in cells).rstrip()

        rule = "  ".join("-" * width for width in widths)
        text = [self.caption, join(lines[0]), rule, *map(join, lines[1:]), self.note]
        return "\n".join(line for line in text if line)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        sides = ["right" if right else "left" for right in self._right()]

        def row(kind: str, cells: Sequence[str]) -> str:
            inside = zip(sides, cells, strict=True)
            return "".join(f'<{kind} style="text-align:{s}">{escape(c)}</{kind}>' for s, c in inside)

        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        body = "".join(f"<tr>{row('td', cells)}</tr>" for cells in self.rows)
        note = f"<p>{escape(self.note).replace(chr(10), '<br>')}</p>" if self.note else ""
        head = f"<thead><tr>{row('th', self.head)}</tr></thead>"
        return f"<table>{caption}{head}<tbody>{body}</tbody></table>{note}"

    def _right(self) -> list[bool]:
        return [
            bool(self.rows) and all(_NUMBER.fullmatch(row[i]) for row in self.rows)
            for i in range(len(self.head))
        ]


def preformatted(text: str) -> str:
    """Text as a notebook shows it: the same words, fixed width."""
    return f"<pre style='line-height:1.3'>{escape(text)}</pre>"
