"""Pictures of who imports whom: boxes in rows, a line from each that imports down to what it imports.

They are SVG inside the page, so that they take the colours of its theme and their boxes are links.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence

WIDTH, BOX_HEIGHT, GAP, ROW_GAP, LETTER = 760, 30, 12, 44, 7.6
Rows = Sequence[Sequence[str]]


def rows_of(uses: Mapping[str, set[str]]) -> list[list[str]]:
    """Names in rows, each above all that it imports; a ring of imports is cut where it is first closed."""
    depth: dict[str, int] = {}
    path: list[str] = []

    def down(name: str) -> int:
        if name not in depth:
            path.append(name)
            below = [down(other) for other in sorted(uses.get(name, ())) if other not in path]
            path.pop()
            depth[name] = 1 + max(below, default=-1)
        return depth[name]

    for name in sorted(uses):
        down(name)
    return [
        [name for name in sorted(uses) if depth[name] == d]
        for d in range(max(depth.values(), default=-1), -1, -1)
    ]


def draw(
    rows: Rows, uses: Mapping[str, set[str]], words: str, link: Callable[[str], str], lit: str = ""
) -> str:
    """The picture as an element. link: a box's address, empty for none. lit: the box to see."""
    places, height = _places(rows)
    lines = []
    for name in sorted(uses):
        for other in sorted(uses[name]):
            if name in places and other in places:
                lines.append(_line(places[name], places[other]))
    boxes = [_box(name, place, link(name), name == lit) for name, place in places.items()]
    title, drawn = html.escape(words, quote=True), "".join([*lines, *boxes])
    return (
        f'<div class="import-picture"><svg role="img" aria-label="{title}" width="{WIDTH}"'
        f' height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}">{drawn}</svg></div>'
    )


def _places(rows: Rows) -> tuple[dict[str, tuple[float, float, float]], float]:
    """x, y and width of each box; a row that is too wide goes on in the next line."""
    places: dict[str, tuple[float, float, float]] = {}
    y = 6.0
    for row in rows:
        lines: list[list[str]] = [[]]
        for name in row:
            if lines[-1] and sum(map(_wide, lines[-1])) + GAP * len(lines[-1]) + _wide(name) > WIDTH - 8:
                lines.append([])
            lines[-1].append(name)
        for number, line in enumerate(lines):
            y += (BOX_HEIGHT + GAP) * bool(number)
            x = (WIDTH - sum(map(_wide, line)) - GAP * (len(line) - 1)) / 2
            for name in line:
                places[name] = (x, y, _wide(name))
                x += _wide(name) + GAP
        y += BOX_HEIGHT + ROW_GAP
    return places, y - ROW_GAP + 6


def _wide(name: str) -> float:
    return 18 + LETTER * len(name)


def _line(above: tuple[float, float, float], below: tuple[float, float, float]) -> str:
    """From the bottom of one box to the top of another."""
    x0, y0 = above[0] + above[2] / 2, above[1] + BOX_HEIGHT
    x1, y1 = below[0] + below[2] / 2, below[1]
    middle = (y0 + y1) / 2
    return f'<path d="M{x0:.0f} {y0:.0f} C{x0:.0f} {middle:.0f} {x1:.0f} {middle:.0f} {x1:.0f} {y1:.0f}"/>'


def _box(name: str, place: tuple[float, float, float], address: str, lit: bool) -> str:
    x, y, width = place
    text = f'<text x="{x + width / 2:.0f}" y="{y + 20:.0f}" text-anchor="middle">{html.escape(name)}</text>'
    shape = f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{BOX_HEIGHT}" rx="5"/>{text}'
    shape = f'<g class="lit">{shape}</g>' if lit else shape
    return f'<a href="{address}">{shape}</a>' if address else shape
