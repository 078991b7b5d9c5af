"""Calls as an icicle: a box for each function, as wide as its time, below the one that called it.

The same as a flame graph, upside down (Gregg, 2016). A wide box with nothing below it is where the time is
spent; the sum of a row's widths never exceeds that of the row above.
"""

from __future__ import annotations

import zlib
from typing import Any

from workshop.facts.units import format_seconds
from workshop.show.drawing import Drawing, box, sheet, text

_WIDTH, _ROW = 900, 18
_PALE = ("#9ecae1", "#fdd0a2", "#a1d99b", "#dadaeb", "#fcbba1", "#d9d9d9", "#c7e9c0", "#fee391")


def icicle(tree: Any, *, depth: int = 14, title: str = "") -> Drawing:
    """Draw a tree of calls, as `measure.profile_calls` gives it: nodes with ``seconds`` and ``children``.

    depth: rows drawn. Colours tell modules apart, and nothing else. ValueError for a tree without time.
    """
    if not tree.seconds > 0:
        raise ValueError("this tree of calls has no time to draw")
    parts: list[str] = [text(0, 12, f"{title + ': ' if title else ''}{format_seconds(tree.seconds)}", 11)]
    rows = _draw(tree, 0.0, 0, depth, tree.seconds, parts)
    widest = max(_flat(tree), key=lambda node: node.self_seconds)
    words = (
        f"{title + ': ' if title else ''}calls, {format_seconds(tree.seconds)} in all; most time of its own: "
        f"{widest.name}, {widest.self_seconds / tree.seconds:.0%}"
    )
    return Drawing(sheet(_WIDTH, 20 + _ROW * rows, parts), words)


def _draw(node: Any, left: float, row: int, depth: int, whole: float, parts: list[str]) -> int:
    """The node and those below it; returns how many rows there are."""
    width = _WIDTH * node.seconds / whole
    if row >= depth or width < 1.0:
        return row
    said = f"{node.name} ({node.place}): {format_seconds(node.seconds)}, {node.seconds / whole:.1%}"
    own = f"; {format_seconds(node.self_seconds)} of its own"
    colour = _PALE[zlib.crc32(node.name.split(".")[0].encode()) % len(_PALE)]
    parts.append(box((left, 18 + _ROW * row, width - 0.6, _ROW - 1), colour, said + own, node.name))
    rows = row + 1
    for child in node.children:
        rows = max(rows, _draw(child, left, row + 1, depth, whole, parts))
        left += _WIDTH * child.seconds / whole
    return rows


def _flat(node: Any) -> list[Any]:
    return [node, *(below for child in node.children for below in _flat(child))]
