"""Sentences as HTML: `code` between backticks becomes code, everything else is escaped.

No colour is set for text or background, so that it reads in a light and in a dark notebook.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence


def inline(text: str) -> str:
    """Escaped text with `code` marked up; the reader's window breaks the lines."""
    marked = re.sub(r"`([^`\n]+)`", r"<code>\1</code>", html.escape(text, quote=False))
    return marked.replace("\n", " ")


def paragraph(text: str) -> str:
    """One paragraph of prose."""
    return f'<p style="margin:0.3em 0">{inline(text)}</p>'


def code_block(source: str) -> str:
    """Source as it stands."""
    return f'<pre style="margin:0.3em 0">{html.escape(source, quote=False)}</pre>'


def boxed(body: str, colour: str) -> str:
    """A body with a coloured rule on its left; the colour never carries the meaning alone."""
    return f'<div style="border-left:4px solid {colour};padding:0.2em 0.8em">{body}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain texts, the columns aligned to the left."""

    def row(tag: str, texts: Sequence[str]) -> str:
        cells = (f'<{tag} style="text-align:left">{html.escape(text)}</{tag}>' for text in texts)
        return f"<tr>{''.join(cells)}</tr>"

    return f"<table>{row('th', head)}{''.join(row('td', texts) for texts in rows)}</table>"
