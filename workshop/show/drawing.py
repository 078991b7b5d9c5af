"""Drawings of our own: SVG, for pictures with thousands of small boxes that should answer to the mouse.

A `Drawing` shows itself in a notebook. Every box carries its words (SVG's ``title``), which a browser shows
when the mouse rests on it.
"""

from __future__ import annotations

from html import escape

from workshop.show import page

FONT = "font-family='DejaVu Sans, Verdana, sans-serif'"


class Drawing:
    """A finished SVG that shows itself; ``words`` where there are only words."""

    def __init__(self, svg: str, words: str):
        self.svg = page.described(svg, words)
        self.words = words

    def __repr__(self) -> str:
        return f"[drawing: {self.words}]"

    def _repr_html_(self) -> str | None:
        return self.svg if page.is_live() else None

    def _repr_svg_(self) -> str:
        return self.svg


def sheet(width: float, height: float, parts: list[str]) -> str:
    """The parts on a white sheet."""
    size = f"width='{width:g}' height='{height:g}' viewBox='0 0 {width:g} {height:g}'"
    background = f"<rect width='{width:g}' height='{height:g}' fill='white'/>"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size} {FONT}>{background}{''.join(parts)}</svg>"


def box(place: tuple[float, float, float, float], colour: str, title: str = "", label: str = "") -> str:
    """A box at (x, y, width, height), its words, and a label inside where it fits (7 px a letter)."""
    x, y, width, height = place
    words = f"<title>{escape(title)}</title>" if title else ""
    place_words = f"x='{x:.1f}' y='{y:.1f}' width='{max(width, 0.3):.1f}' height='{height:.1f}'"
    drawn = f"<rect {place_words} fill='{colour}'>{words}</rect>"
    room = int((width - 4) / 5.6)
    if label and room >= 3:
        short = label if len(label) <= room else label[: room - 1] + "…"
        drawn += text(x + 3, y + height / 2 + 3.5, short, 9.5, title=title)
    return drawn


def text(x: float, y: float, words: str, size: float = 10, *, anchor: str = "start", title: str = "") -> str:
    """A line of words; ``anchor``: start, middle or end."""
    more = f"<title>{escape(title)}</title>" if title else ""
    side = f" text-anchor='{anchor}'" if anchor != "start" else ""
    passes = " pointer-events='none'" if not title else ""
    look = f"x='{x:.1f}' y='{y:.1f}' font-size='{size:g}'{side}{passes} fill='#222'"
    return f"<text {look}>{escape(words)}{more}</text>"


def area(points: list[tuple[float, float]], base: float, colour: str) -> str:
    """A filled curve over the line at ``base``."""
    if not points:
        return ""
    inside = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    corners = f"{points[0][0]:.1f},{base:.1f} {inside} {points[-1][0]:.1f},{base:.1f}"
    return (
        f"<polygon points='{corners}' fill='{colour}' fill-opacity='0.25'/>"
        f"<polyline points='{inside}' fill='none' stroke='{colour}' stroke-width='1.3'/>"
    )
