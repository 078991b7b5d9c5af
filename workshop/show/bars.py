"""Bars: amounts to compare, beside each other (predicted and measured) or stacked of parts."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from workshop.facts.units import format_bytes
from workshop.show.parts import PART_COLOURS, parts_of
from workshop.show.style import (
    LIMIT,
    MEASURED,
    ON_WHITE,
    PREDICTED,
    RANK_COLOURS,
    Picture,
    byte_unit,
    legend,
    name_axes,
    new_figure,
)
from workshop.show.tables import short_bytes, wire_bytes_by_axis

_BESIDE = (PREDICTED, MEASURED, *RANK_COLOURS[2:4])

TITLE_LETTERS = 84  # that have room above the bars


def bars_beside(axis: Any, names: Sequence[str], series: Mapping[str, Sequence[float]]) -> list[list[float]]:
    """At each name a bar of every series, first grey, then blue; returns their places, series by series.

    series: label -> a length for each name. At most four.
    """
    high = 0.8 / len(series)
    places = [[row - 0.4 + high * (at + 0.5) for row in range(len(names))] for at in range(len(series))]
    for at, colour, (label, lengths) in zip(places, _BESIDE, series.items(), strict=False):
        axis.barh(at, lengths, 0.95 * high, color=colour, label=label)
    _rows(axis, names)
    return places


def bars_stacked(axis: Any, rows: Mapping[str, Mapping[str, float]], colours: Mapping[str, str]) -> None:
    """A bar for each row, made of its parts in the order of the colours, without those that nobody has."""
    left = [0.0] * len(rows)
    for part, colour in colours.items():
        lengths = [parts.get(part, 0.0) for parts in rows.values()]
        if any(lengths):
            axis.barh(range(len(rows)), lengths, 0.65, left=left, color=colour, label=part)
            left = [start + length for start, length in zip(left, lengths, strict=True)]
    _rows(axis, list(rows))


def _rows(axis: Any, names: Sequence[str]) -> None:
    """Names at the left, the first one on top."""
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()


def at_end(axis: Any, length: float, place: float, words: str, colour: str = "black") -> None:
    """Words behind the end of a bar, on white: the line of a cap may cross them."""
    axis.annotate(
        words, (length, place), (3, 0), textcoords="offset points", va="center", fontsize=8, color=colour,
        bbox=ON_WHITE, zorder=4,
    )  # fmt: skip


def cap_line(axis: Any, cap: float, unit: float) -> None:
    """The device's memory across all bars, in the legend too; both in bytes."""
    axis.axvline(cap / unit, color=LIMIT, linewidth=1.5, label=f"cap {format_bytes(cap)}")


def predicted_and_measured(
    names: Sequence[str],
    predicted: Sequence[float],
    measured: Sequence[float | None],
    *,
    cap: float | None = None,
    what: str = "bytes a rank holds",
) -> Picture:
    """A figure with a grey bar (predicted) and a blue one (measured) for each name; sizes in bytes.

    A measured value of None is a run that went out of memory; it is drawn as such. ValueError when the
    three lists differ in length.
    """
    if not len(names) == len(predicted) == len(measured):
        raise ValueError(
            f"{len(names)} names, {len(predicted)} predictions, {len(measured)} measurements: "
            "each case needs one of each"
        )
    figure, axis = new_figure(6.4, 0.8 + 0.5 * len(names))
    name_of_unit, unit = byte_unit(max([*predicted, *(size or 0 for size in measured), cap or 0]))
    expected, happened = ([(size or 0) / unit for size in sizes] for sizes in (predicted, measured))
    _, places = bars_beside(axis, names, {"predicted": expected, "measured": happened})
    for place, length, size in zip(places, happened, measured, strict=True):
        words = "out of memory" if size is None else format_bytes(size)
        at_end(axis, length, place, words, LIMIT if size is None else "black")
    if cap is not None:
        cap_line(axis, cap, unit)
    name_axes(axis, f"{what}, {name_of_unit}")
    axis.set_xlim(0, 1.22 * max([*expected, *happened, (cap or 0) / unit]))
    legend(figure, 3, above=True)
    cases = zip(names, predicted, measured, strict=True)
    return Picture(figure, f"{what}: " + "; ".join(_pair_in_words(*case) for case in cases))


def _pair_in_words(name: str, predicted: float, measured: float | None) -> str:
    outcome = "out of memory" if measured is None else f"measured {format_bytes(measured)}"
    return f"{name}, predicted {format_bytes(predicted)}, {outcome}"


def memory_by_part(
    cases: Mapping[str, Any], *, cap: float | None = None, title: str = "", compare: bool = True
) -> Picture:
    """One stacked bar for each case, for example ``{"predicted": expected, "measured": found}``.

    ``cases``: label -> anything that `parts_of` reads. ``cap``: bytes of the device, drawn as a line.
    ``title`` stands above. ``compare``: say at every bar how far the first was off it; False where the bars
    are different things. ValueError without a case.
    """
    if not cases:
        raise ValueError("no case to draw: give {'predicted': ..., 'measured': ...}")
    stacks = {name: parts_of(source) for name, source in cases.items()}
    totals = {name: sum(parts.values()) for name, parts in stacks.items()}
    widest = max([*totals.values(), cap or 0])
    unit, size = byte_unit(widest)
    figure, axis = new_figure(7.0, 1.2 + 0.48 * len(stacks) + 0.15 * (len(title) // TITLE_LETTERS))
    scaled = {name: {part: held / size for part, held in parts.items()} for name, parts in stacks.items()}
    bars_stacked(axis, scaled, PART_COLOURS)
    for place, (name, total) in enumerate(totals.items()):
        over = cap is not None and total > cap
        words = format_bytes(total) + (_against_first(name, totals) if compare else "")
        at_end(axis, _clear_of(cap, total, widest) / size, place, words, LIMIT if over else "black")
    if cap is not None:
        cap_line(axis, cap, size)
    axis.set_xlim(0, 1.3 * widest / size or 1)
    name_axes(axis, unit)
    lines = [part for line in title.splitlines() for part in textwrap.wrap(line, TITLE_LETTERS)]
    axis.set_title("\n".join(lines), fontsize=9, loc="left")
    legend(figure, 5)
    words = "; ".join(_parts_in_words(name, stacks[name], totals[name]) for name in stacks)
    return Picture(figure, f"memory by part: {words}")


def _clear_of(cap: float | None, total: float, widest: float) -> float:
    """Where a bar's words begin: at its end, or behind the line of the cap if it would cross them."""
    return cap if cap is not None and total < cap < total + 0.2 * widest else total


def _against_first(name: str, totals: Mapping[str, float]) -> str:
    """How far the first case was off this one, if this is not the first itself."""
    first = next(iter(totals))
    if name == first or not totals[name]:
        return ""
    return f"  ({first} {totals[first] / totals[name] - 1:+.1%})"


def _parts_in_words(name: str, parts: Mapping[str, float], total: float) -> str:
    each = ", ".join(f"{part} {format_bytes(size)}" for part, size in parts.items())
    return f"{name} {format_bytes(total)} ({each})"


def traffic_by_axis(
    cases: Mapping[str, Any], title: str = "what a rank sends in a step", linear: bool = False
) -> Picture:
    """A bar for each axis and case, on a scale where each line is ten times the one before.

    ``cases``: labels to what `traffic_table` takes, or to bytes by axis. At most four; ValueError for none.
    ``linear``: bars as long as their bytes, where one axis is to stand out.
    """
    if not 1 <= len(cases) <= len(_BESIDE):
        raise ValueError(f"{len(cases)} cases: give one to four, for example predicted and measured")
    sent = {
        name: dict(source) if isinstance(source, Mapping) else wire_bytes_by_axis(source)
        for name, source in cases.items()
    }
    largest: dict[str, int] = {}
    for sums in sent.values():
        for axis, size in sums.items():
            largest[axis] = max(size, largest.get(axis, 0))
    axes = sorted(sorted(largest), key=lambda axis: -largest[axis])
    figure, picture = new_figure(6.4, 0.9 + 0.26 * len(axes) * (len(sent) + 0.6))
    least = 0.0 if linear else min(size for sums in sent.values() for size in sums.values() if size) / 3
    lengths = {name: [max(sums.get(axis, 0), least) for axis in axes] for name, sums in sent.items()}
    for places, sums in zip(bars_beside(picture, axes, lengths), sent.values(), strict=True):
        for y, size in zip(places, (sums.get(axis, 0) for axis in axes), strict=True):
            at_end(picture, max(size, least), y, short_bytes(size))
    picture.set_xscale("linear" if linear else "log")
    if linear:
        from matplotlib.ticker import EngFormatter

        picture.xaxis.set_major_formatter(EngFormatter("B"))
    picture.set_xlim(least, (1.15 if linear else 12) * max(largest.values()))
    name_axes(picture, "bytes on the wire")
    picture.set_title(title, fontsize=9, loc="left")
    legend(figure, 4)
    words = "; ".join(
        f"{name}: " + ", ".join(f"{axis} {short_bytes(sums.get(axis, 0))}" for axis in axes)
        for name, sums in sent.items()
    )
    return Picture(figure, f"{title}; {words}")
