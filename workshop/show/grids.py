"""Grids: boxes side by side, each with a word in it, such as the bits of a number; boxes and arrows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from workshop.facts.formats import FORMATS, FloatFormat, float_format
from workshop.show.style import Picture, name_axes, new_figure

FIELD_COLOURS = ("#D55E00", "#E69F00", "#56B4E9")  # sign, exponent, mantissa
EIGHT_TO_32_BITS = ("fp32", "tf32", "bf16", "fp16", "e4m3", "e5m2")
_PALE = ("white", "#F0E442", "#56B4E9", "#E69F00", "#CC79A7")  # black words can be read on these


def ink_on(colour: str) -> str:
    """Black or white, whichever can be read on the colour."""
    return "black" if colour in _PALE else "white"


def cell(
    axis: Any,
    place: tuple[float, float, float, float],
    colour: str,
    words: str = "",
    *,
    ink: str = "",
    size: float = 7,
    **look: Any,
) -> None:
    """A box at (left, top, width, height) with words in its middle; ``look``: of matplotlib's Rectangle.

    ink: the words' colour; `ink_on` the box's by default.
    """
    from matplotlib.patches import Rectangle

    left, top, width, height = place
    axis.add_patch(Rectangle((left, top), width, height, facecolor=colour, **look))
    if words:
        middle = left + width / 2, top + height / 2
        axis.text(*middle, words, ha="center", va="center", fontsize=size, color=ink or ink_on(colour))


def round_box(
    axis: Any, corner: tuple[float, float], size: tuple[float, float], words: str, colour: str = "white"
) -> None:
    """A process as a box with round corners, its words black or white, whichever can be read."""
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0.02,rounding_size=0.06"
    axis.add_patch(FancyBboxPatch(corner, *size, boxstyle=style, facecolor=colour, edgecolor="#333333"))
    middle = corner[0] + size[0] / 2, corner[1] + size[1] / 2
    axis.text(*middle, words, ha="center", va="center", fontsize=8, color=ink_on(colour))


def arrow(axis: Any, start: tuple[float, float], end: tuple[float, float], line: str = "-") -> None:
    """An arrow; ``line``: "-", or "--" for a dashed one."""
    axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "#555555", "linestyle": line})


def only_boxes(axis: Any, x: tuple[float, float], y: tuple[float, float]) -> None:
    """Limits to the right and upwards, and no axes: the boxes say all."""
    axis.set_xlim(*x)
    axis.set_ylim(*y)
    axis.axis("off")


def no_lines(axis: Any) -> None:
    """Words at the axes, but neither their lines nor ticks."""
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def number_in_formats(value: float, formats: Sequence[str] = EIGHT_TO_32_BITS) -> Picture:
    """A row for each format: a box a bit, the nearest value, and how far off it is, relatively.

    value: any finite number; what is too large for a format shows what rounding makes of it. ValueError for
    a number that is not finite, and for an unknown format.
    """
    if not math.isfinite(value):
        raise ValueError(f"{value} has no bits to look at: take a finite number")
    known = [float_format(name) for name in formats]
    figure, axis = new_figure(8.6, 0.7 + 0.36 * len(known))
    words = []
    for row, form in enumerate(known):
        became = form.round(value)
        off = "" if not value or math.isinf(became) else f"{became / value - 1:+.2%}"
        _bits(axis, row, form, value)
        axis.text(-0.6, row, form.name, ha="right", va="center", fontsize=8)
        axis.text(32.8, row, f"{became:.6g}", va="center", fontsize=8, family="monospace")
        axis.text(39.0, row, off, va="center", fontsize=8, family="monospace", color="#666666")
        words.append(f"{form} {became:.6g}")
    for left, name, colour in zip((0, 4, 10), ("sign", "exponent", "mantissa"), FIELD_COLOURS, strict=True):
        axis.text(left, -1.0, name, fontsize=8, color=colour, weight="bold", va="center")
    for at, name in ((32.8, "becomes"), (39.0, "off by")):
        axis.text(at, -1.0, name, fontsize=8, weight="bold", va="center")
    axis.set_title(f"{value:.6g}", fontsize=10, family="monospace", loc="left")
    only_boxes(axis, (-3.5, 43), (len(known) - 0.4, -1.6))
    return Picture(figure, f"{value:.6g} becomes {', '.join(words)}")


def _bits(axis: Any, row: int, form: FloatFormat, value: float) -> None:
    """The bits of the nearest value, a box each: full for a one."""
    left = 0
    for field, colour in zip(form.pattern(value).split(), FIELD_COLOURS, strict=True):
        for bit in field:
            fill, ink = (colour, "white") if bit == "1" else ("white", colour)
            cell(axis, (left, row - 0.4, 0.92, 0.8), fill, bit, ink=ink, size=6, edgecolor=colour)
            left += 1


def format_ranges(formats: Sequence[str] = tuple(FORMATS)) -> Picture:
    """A bar for each format from its smallest to its largest value, powers of ten; subnormal numbers pale."""
    known = [float_format(name) for name in formats]
    figure, axis = new_figure(7.4, 0.7 + 0.3 * len(known))
    for row, form in enumerate(known):
        smallest, normal, largest = (
            math.log10(x) for x in (form.smallest, form.smallest_normal, form.largest)
        )
        axis.barh(row, largest - normal, left=normal, height=0.6, color=FIELD_COLOURS[2])
        axis.barh(row, normal - smallest, left=smallest, height=0.6, color="#CFE8F7")
        plural = "" if form.mantissa_bits == 1 else "s"
        words = f"{form.mantissa_bits} bit{plural} of mantissa, to {form.largest:.5g}"
        axis.text(largest + 0.7, row, words, va="center", fontsize=8)
    axis.set_yticks(range(len(known)), [form.name for form in known], fontsize=8)
    axis.set_xlim(-47, 62)
    axis.set_xticks(range(-45, 46, 15), [f"$10^{{{power}}}$" for power in range(-45, 46, 15)], fontsize=8)
    axis.invert_yaxis()
    name_axes(axis, "magnitude")
    ranges = ", ".join(f"{form} {form.smallest:.1e} to {form.largest:.5g}" for form in known)
    return Picture(figure, f"smallest and largest values: {ranges}")
