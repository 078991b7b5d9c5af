"""Rows of words that show themselves: aligned text in a terminal, an HTML table in a notebook."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_VALUE = r"(?:[-+]?[\d,.]+(?:e[-+]?\d+)?[KMBT]?|inf|nan)"  # 3, 1,024, 1e-05, 7B
_QUANTITY = rf"{_VALUE}(?:\s?[%×x]|\s(?:/\s)?[A-Za-zµ/]+)?"  # 12 %, 450 GB/s, 4.11 / s
_NUMBER = re.compile(
    rf"{_QUANTITY}(?: (?:of|to) {_QUANTITY})?"  # 3 of 4, 7.8% to 9.3%
    r"|\d+ [a-z]+ \d+ [a-z]+"  # 7 min 29 s
    r"|-|"
)


@dataclass(frozen=True, repr=False)
class Table:
    """``rows`` of words under ``head``; ``caption`` stands above them and ``note`` below.

    A column whose every cell is a number (with or without a unit) is set to the right, and a notebook breaks
    none of them between number and unit. ValueError when a row is shorter or longer than the head.
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
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        columns = range(len(self.head))
        return "\n".join(filter(None, [self.caption, *self._block(columns, widths), self.note]))

    __repr__ = __str__

    def within(self, width: int) -> str:
        """The text on lines of at most ``width`` letters, as a terminal has them.

        Names of columns break between words. Columns that find no room stand in a second block below,
        beside the first column again. A column that is wider than all the room stays as wide as it is.
        """
        words = [re.split(r"[ -]", name) for name in self.head]
        cells = zip(words, *self.rows, strict=True)
        widths = [max(map(len, [*name, *column])) for name, *column in cells]
        blocks: list[list[int]] = [[0]]
        for column in range(1, len(self.head)):
            room = width - sum(widths[i] + 2 for i in blocks[-1])
            if widths[column] > room and len(blocks[-1]) > 1:
                blocks.append([0])
            blocks[-1].append(column)
        text = [line for block in blocks for line in ["", *self._block(block, widths)]][1:]
        above, below = ([] if not words else _wrapped(words, width) for words in (self.caption, self.note))
        return "\n".join([*above, *text, *below])

    def _block(self, columns: Sequence[int], widths: Sequence[int]) -> list[str]:
        """Head, rule and rows of these columns, each as wide as ``widths`` says; long names on more lines."""
        numbers = self._right()

        def join(line: Sequence[str]) -> str:
            cells = zip(line, columns, strict=True)
            fit = (c.rjust(widths[i]) if numbers[i] else c.ljust(widths[i]) for c, i in cells)
            return "  ".join(fit).rstrip()

        names = [_wrapped(self.head[i], max(widths[i], 1)) or [""] for i in columns]
        high = max(map(len, names))
        head = zip(*([""] * (high - len(name)) + name for name in names), strict=True)
        rule = "  ".join("-" * widths[i] for i in columns)
        return [*map(join, head), rule, *(join([row[i] for i in columns]) for row in self.rows)]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        numbers = self._right()

        def row(kind: str, cells: Sequence[str]) -> str:
            whole = ";white-space:nowrap" if kind == "td" else ""
            styles = [f"text-align:right{whole}" if number else "text-align:left" for number in numbers]
            inside = zip(styles, cells, strict=True)
            return "".join(f'<{kind} style="{style}">{escape(cell)}</{kind}>' for style, cell in inside)

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


def _wrapped(text: str, width: int) -> list[str]:
    """The text's lines, broken between words where they are longer."""
    return [part for line in text.splitlines() for part in textwrap.wrap(line, width, break_long_words=False)]


def preformatted(text: str) -> str:
    """Text as a notebook shows it: the same words, fixed width."""
    return f"<pre style='line-height:1.3;font-family:monospace'>{escape(text)}</pre>"
