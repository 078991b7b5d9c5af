"""Live bytes over a step, by part: where the peak is, and what it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from workshop.facts.units import format_bytes
from workshop.show.parts import DRAWN, PART_COLOURS, parts_of
from workshop.show.style import LIMIT, Picture, byte_unit, new_figure


def memory_timeline(source: Any, *, cap: float | None = None) -> Picture:
    """Stacked areas over the moments of a run, the phases named above, the peak marked.

    ``source``: a `Timeline`, or what `measure` or `rehearse` bring back. The horizontal axis counts the
    moments at which live bytes were read; it is an order, not a time. ``cap``: bytes of the device.
    ValueError when there is no timeline in ``source``.
    """
    timeline = _timeline_of(source)
    totals = timeline.total_bytes
    unit, size = byte_unit(max([*totals, cap or 0]))
    stacks = _stacks(timeline)
    figure, axis = new_figure(7.0, 3.2)
    moments = range(len(totals))
    heights = [[value / size for value in values] for values in stacks.values()]
    axis.stackplot(
        moments, heights, colors=[PART_COLOURS[p] for p in stacks], labels=list(stacks), step="post"
    )
    at = max(moments, key=totals.__getitem__)
    axis.plot([at], [totals[at] / size], "v", color="black", markersize=6)
    right = at > len(totals) / 2
    axis.annotate(
        f"peak {format_bytes(totals[at])}", (at, totals[at] / size), (-8 if right else 8, 4),
        textcoords="offset points", ha="right" if right else "left", fontsize=8,
    )  # fmt: skip
    if cap is not None:
        axis.axhline(cap / size, color=LIMIT, linewidth=1.5)
        axis.text(
            0.01 * len(totals), cap / size, f"cap {format_bytes(cap)}", va="bottom", fontsize=8, color=LIMIT
        )
    top = 1.25 * max(totals[at], cap or 0) / size
    spans = _name_phases(axis, timeline.phases, top)
    axis.set_xlim(0, len(totals) - 1 or 1)
    axis.set_ylim(0, top or 1)
    axis.set_xlabel("moments, in order")
    axis.set_ylabel(unit)
    figure.legend(
        *axis.get_legend_handles_labels(), loc="outside upper center", ncols=5, fontsize=8, frameon=False
    )
    peak = f"peak {format_bytes(totals[at])} in {timeline.phases[at]}"
    return Picture(figure, f"live memory over {len(totals)} moments ({', '.join(spans)}), {peak}")


def memory_timelines(cases: Mapping[str, Any]) -> Picture:
    """The same for several runs side by side, on one vertical axis: label -> what `memory_timeline` takes."""
    timelines = {name: _timeline_of(source) for name, source in cases.items()}
    if not timelines:
        raise ValueError("no timeline to draw: give {'plain': ..., 'recomputed': ...}")
    peaks = {name: max(timeline.total_bytes) for name, timeline in timelines.items()}
    unit, size = byte_unit(max(peaks.values()))
    figure, axes = new_figure(2.4 * len(cases), 3.0, columns=len(cases))
    drawn: dict[str, Any] = {}
    for axis, (name, timeline) in zip(axes if len(cases) > 1 else [axes], timelines.items(), strict=True):
        stacks, moments = _stacks(timeline), range(len(timeline.total_bytes))
        heights = [[value / size for value in values] for values in stacks.values()]
        areas = axis.stackplot(moments, heights, colors=[PART_COLOURS[part] for part in stacks], step="post")
        drawn |= dict(zip(stacks, areas, strict=True))
        axis.axhline(peaks[name] / size, color="black", linewidth=0.8, linestyle=":")
        axis.set_title(f"{name}\npeak {format_bytes(peaks[name])}", fontsize=9, loc="left")
        axis.set_xlim(0, len(moments) - 1 or 1)
        axis.set_ylim(0, 1.05 * max(peaks.values()) / size)
        axis.set_xlabel("moments, in order", fontsize=8)
    (axes if len(cases) == 1 else axes[0]).set_ylabel(unit)
    figure.legend(
        drawn.values(), drawn.keys(), loc="outside lower center", ncols=5, fontsize=8, frameon=False
    )
    return Picture(figure, "peaks: " + ", ".join(f"{n} {format_bytes(peak)}" for n, peak in peaks.items()))


def _timeline_of(source: Any) -> Any:
    memory = getattr(source, "memory", None) or source
    timeline = getattr(memory, "timeline", memory)
    if not getattr(timeline, "total_bytes", None):
        raise ValueError(
            f"a {type(source).__name__} has no timeline of memory: give what measure or rehearse bring back"
        )
    return timeline


def _stacks(timeline: Any) -> dict[str, list[float]]:
    """Bytes of every drawn part at every moment."""
    names = list(timeline.part_bytes)
    each = [
        parts_of(dict(zip(names, now, strict=True)))
        for now in zip(*timeline.part_bytes.values(), strict=True)
    ]
    return {part: [now.get(part, 0.0) for now in each] for part in DRAWN if any(part in now for now in each)}


def _name_phases(axis: Any, phases: Sequence[str], top: float) -> list[str]:
    """A line where a phase ends, its name where there is room; returns the names in order."""
    start, spans = 0, []
    for name, run in groupby(phases):
        length = len(list(run))
        if start:
            axis.axvline(start, color="#888888", linewidth=0.6, linestyle=":")
        if length > 0.07 * len(phases):
            axis.text(
                start + length / 2, 0.96 * top, name, ha="center", va="top", fontsize=8, color="#444444"
            )
        spans.append(name)
        start += length
    return list(dict.fromkeys(spans))
