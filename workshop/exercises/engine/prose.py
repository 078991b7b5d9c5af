"""Sentences as HTML: `code` between backticks becomes code, *words* between stars are emphasised.

All else is escaped, dollars too: a notebook would set what stands between two of them as a formula.

No colour is set for text or background, so that it reads in a light and in a dark notebook.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_STARS = re.compile(r"(?<![\w*])\*(\w[^*]*\w|\w)\*(?![\w*])")


def inline(text: str) -> str:
    """Escaped text with `code` and *emphasis* marked up; the reader's window breaks the lines."""
    pieces = re.split(r"`([^`]+)`", html.escape(text.replace("\n", " "), quote=False))
    marked = [
        f"<code>{piece}</code>" if at % 2 else _STARS.sub(r"<em>\1</em>", piece)
        for at, piece in enumerate(pieces)
    ]
    return "".join(marked).replace("$", "<span>$</span>")


def paragraph(text: str) -> str:
    """One paragraph of prose."""
    return f'<p style="margin:0.3em 0">{inline(text)}</p>'


def code_block(source: str) -> str:
    """Source as it stands."""
    return f'<pre style="margin:0.3em 0;font-family:monospace">{html.escape(source, quote=False)}</pre>'


def boxed(body: str, colour: str) -> str:
    """A body with a coloured rule on its left; the colour never carries the meaning alone."""
    return f'<div style="border-left:4px solid {colour};padding:0.2em 0.8em">{body}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain texts, the columns aligned to the left."""

    def row(tag: str, texts: Sequence[str]) -> str:
        cells = (f'<{tag} style="text-align:left">{html.escape(text)}</{tag}>' for text in texts)
        return f"<tr>{''.join(cells)}</tr>"

    return f"<table>{row('th', head)}{''.join(row('td', texts) for texts in rows)}</table>"
