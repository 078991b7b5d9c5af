"""The line of a cell on which a rank failed: marked in the cell itself, and a link that leads there.

An output of a live page may hold a style sheet, and one rule is enough: of the cell that holds this output,
the line of that number. No script is needed; when the cell runs again its outputs go, and the mark with them.
The link leads to the cell's first output, which lies just below the code, and stops above it by as many lines
as the code has left. On a page that is read without JupyterLab both do nothing, and the words are still true.
"""

from __future__ import annotations

import secrets
from html import escape

from workshop.launch import RankFailed
from workshop.launch.output import rank_label

_MARK = "background-color:rgba(213,94,0,0.22);box-shadow:inset 4px 0 0 #D55E00"
_NEIGHBOURS = 1  # lines before and after the one that failed


class FailingLine:
    """Where the ranks failed first, in the cell's own lines; the first of them counts from its ``%%`` line.

    Raises ValueError where no rank failed in the cell's own lines: see `of`.
    """

    def __init__(self, ranks: list[int], line: int, source: list[str]):
        if not 1 <= line <= len(source):
            raise ValueError(f"line {line}: the cell has {len(source)}")
        self.ranks, self.line, self.source = ranks, line, source
        self.anchor = f"cell-{secrets.token_hex(6)}"

    @classmethod
    def of(cls, error: BaseException, source: list[str]) -> FailingLine | None:
        """Of what a parallel cell raised; None where it does not say a line of this source."""
        if not isinstance(error, RankFailed):
            return None
        own = [failure for failure in error.failures if failure.line and not failure.file]
        if not own or not 1 <= (own[0].line or 0) <= len(source):
            return None
        line = own[0].line or 0
        return cls([failure.rank for failure in own if failure.line == line], line, source)

    def top(self, first_line: str) -> str:
        """The cell's first output: its text, the place to which the link leads, and the mark."""
        below = len(self.source) - self.line + 4
        place = f'<span id="{self.anchor}" style="scroll-margin-top:calc({below} * 1.5em)"></span>'
        marked = f".jp-CodeCell:has(#{self.anchor}) .jp-InputArea .cm-line:nth-child({self.line})"
        return f"<style>{marked} {{ {_MARK} }}</style>{place}{first_line}"

    def link(self) -> str:
        """Where, as a link, and the line with its neighbours."""
        first = max(1, self.line - _NEIGHBOURS)
        last = min(len(self.source), self.line + _NEIGHBOURS)
        rows = "".join(
            f"{'→' if number == self.line else ' '} {number:>3}  {escape(self.source[number - 1])}\n"
            for number in range(first, last + 1)
        )
        where = f'<a href="#{self.anchor}">Go to line {self.line} of the cell</a>'
        box = f'<pre style="margin:0.2em 0;font-family:monospace">{rows}</pre>'
        who = escape(rank_label(self.ranks))
        return f"<div>{where}, where {who} failed first; it is marked there.{box}</div>"

    def plain(self) -> str:
        """The same without a page."""
        return f"line {self.line}: {self.source[self.line - 1].strip()}"
