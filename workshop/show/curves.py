"""Curves: one number over another, over steps, sizes or moments, and the dots of several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

from workshop.facts.units import format_bytes
from workshop.show.drawing import Drawing, area, box, sheet, text
from workshop.show.parts import DRAWN, PART_COLOURS, parts_of
from workshop.show.style import (
    LIMIT,
    ON_WHITE,
    RANK_COLOURS,
    Picture,
    byte_unit,
    legend,
    name_axes,
    new_figure,
    panels,
    rank_colour,
)

_STRIP_LEFT, _STRIP_WIDTH, _STRIP_HEIGHT, _STRIP_RIGHT = 190, 360, 34, 190


def error_by_size(
    sizes: Sequence[float], errors: Mapping[str, Sequence[float]], what: str = "size of the number"
) -> Picture:
    """Relative error over the number's size, both logarithmic; a line for each format.

    An error of one is a number that became zero; where a line ends, numbers become infinite, or as wrong.
    """
    figure, axis = new_figure(7.4, 3.2)
    for index, (name, values) in enumerate(errors.items()):
        look = {"color": rank_colour(index), "linestyle": ("-", "--", ":")[index % 3]}  # equal ones show
        axis.plot(sizes, values, linewidth=1.4, label=name, **look)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_ylim(min(value for values in errors.values() for value in values if value > 0) / 5, 2)
    name_axes(axis, what, "relative error")
    legend(figure, 4 if max(map(len, errors)) < 18 else 3)
    best = ", ".join(f"{name} {min(values):.1e}" for name, values in errors.items())
    return Picture(figure, f"relative error by {what}; at best {best}")


def loss_by_bytes(
    losses: Mapping[str, Sequence[float]], sent_bytes: Mapping[str, Sequence[float]], every: int = 1
) -> Picture:
    """Two panels: each name's losses over steps, and over the bytes a rank had sent by then (log).

    losses, sent_bytes: by name, a number for every ``every`` steps; bytes are those sent since the number
    before. ValueError where the two do not name the same runs.
    """
    if set(losses) != set(sent_bytes):
        raise ValueError(f"losses of {sorted(losses)}, bytes of {sorted(sent_bytes)}: name the same runs")
    figure, axes = new_figure(8.0, 3.2, columns=2)
    for index, name in enumerate(losses):
        curve = list(losses[name])
        steps = [every * number for number in range(1, len(curve) + 1)]
        colour, style = rank_colour(index), "-" if index < 8 else "--"
        axes[0].plot(steps, curve, style, color=colour, linewidth=1.2, label=name)
        total, points = 0.0, []
        for sent, loss in zip(sent_bytes[name], curve, strict=True):
            total += sent
            if total > 0:
                points.append((total / 1e6, loss))
        if points:
            axes[1].plot(*zip(*points, strict=True), style, color=colour, linewidth=1.2)
            axes[1].plot(*points[-1], "o", color=colour, markersize=4)
    name_axes(axes[0], "step", "loss")
    _megabyte_axis(axes[1])
    name_axes(axes[1], "MB a rank has sent", "loss")
    legend(figure, 4, above=True)
    ends = ", ".join(f"{name} {values[-1]:.2f}" for name, values in losses.items())
    return Picture(figure, f"loss by steps and by bytes sent; at the end: {ends}")


def _megabyte_axis(axis: Any) -> None:
    """Logarithmic, with numbers as people write them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def spread(values: Mapping[str, Sequence[float]], label: str) -> Picture:
    """A row for each name: a dot for every seed, a line at their mean."""
    figure, axis = new_figure(6.4, 0.9 + 0.4 * len(values))
    for index, seeds in enumerate(values.values()):
        axis.plot(seeds, [index] * len(seeds), "o", color=rank_colour(index), alpha=0.7)
        axis.plot([sum(seeds) / len(seeds)] * 2, [index - 0.3, index + 0.3], "-", color=rank_colour(index))
    axis.set_yticks(range(len(values)), list(values))
    axis.set_ylim(len(values) - 0.5, -0.5)
    name_axes(axis, label)
    means = ", ".join(f"{name} {sum(seeds) / len(seeds):.2f}" for name, seeds in values.items())
    return Picture(figure, f"{label}; means: {means}")


def memory_timeline(source: Any, *, cap: float | None = None) -> Picture:
    """Stacked areas over the moments of a run, the phases named above, the peak marked.

    ``source``: a `Timeline`, or what `measure` or `rehearse` bring back. The horizontal axis counts the
    moments at which live bytes were read; it is an order, not a time. ``cap``: bytes of the device.
    ValueError when there is no timeline in ``source``.
    """
    timeline = _timeline_of(source)
    totals = timeline.total_bytes
    unit, size = byte_unit(max([*totals, cap or 0]))
    figure, axis = new_figure(7.0, 3.2)
    _stack_areas(axis, timeline, size)
    at = max(range(len(totals)), key=totals.__getitem__)
    axis.plot([at], [totals[at] / size], "v", color="black", markersize=6)
    right = at > len(totals) / 2
    axis.annotate(
        f"peak {format_bytes(totals[at])}", (at, totals[at] / size), (-8 if right else 8, 4),
        textcoords="offset points", ha="right" if right else "left", fontsize=8,
        bbox=ON_WHITE,
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
    name_axes(axis, "moments, in order", unit)
    legend(figure, 5, above=True)
    peak = f"peak {format_bytes(totals[at])} in {timeline.phases[at]}"
    return Picture(figure, f"live memory over {len(totals)} moments ({', '.join(spans)}), {peak}")


def memory_timelines(cases: Mapping[str, Any]) -> Picture:
    """The same for several runs side by side, on one vertical axis: label -> what `memory_timeline` takes."""
    timelines = {name: _timeline_of(source) for name, source in cases.items()}
    if not timelines:
        raise ValueError("no timeline to draw: give {'plain': ..., 'recomputed': ...}")
    peaks = {name: max(timeline.total_bytes) for name, timeline in timelines.items()}
    unit, size = byte_unit(max(peaks.values()))
    figure, axes = panels(2.4 * len(cases), 3.0, len(cases))
    for axis, (name, timeline) in zip(axes, timelines.items(), strict=True):
        _stack_areas(axis, timeline, size)
        axis.axhline(peaks[name] / size, color="black", linewidth=0.8, linestyle=":")
        axis.set_title(f"{name}\npeak {format_bytes(peaks[name])}", fontsize=9, loc="left")
        axis.set_xlim(0, len(timeline.total_bytes) - 1 or 1)
        axis.set_ylim(0, 1.05 * max(peaks.values()) / size)
        axis.set_xlabel("moments, in order", fontsize=8)
        axis.tick_params(labelleft=axis is axes[0])  # one height for all
    name_axes(axes[0], y=unit)
    legend(figure, 5)
    return Picture(figure, "peaks: " + ", ".join(f"{n} {format_bytes(peak)}" for n, peak in peaks.items()))


def _timeline_of(source: Any) -> Any:
    memory = getattr(source, "memory", None) or source
    timeline = getattr(memory, "timeline", memory)
    if not getattr(timeline, "total_bytes", None):
        raise ValueError(
            f"a {type(source).__name__} has no timeline of memory: give what measure or rehearse bring back"
        )
    return timeline


def _stack_areas(axis: Any, timeline: Any, size: float) -> None:
    """Bytes of every drawn part at every moment, in units of ``size`` bytes, one on the other."""
    names = list(timeline.part_bytes)
    each = [
        parts_of(dict(zip(names, now, strict=True)))
        for now in zip(*timeline.part_bytes.values(), strict=True)
    ]
    present = [part for part in DRAWN if any(part in now for now in each)]
    heights = [[now.get(part, 0.0) / size for now in each] for part in present]
    colours = [PART_COLOURS[part] for part in present]
    axis.stackplot(range(len(each)), heights, colors=colours, labels=present, step="post")


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


class Strip(NamedTuple):
    """A quantity over time; ``top`` is the height of the strip, ``reading`` its words at the right."""

    name: str
    values: Sequence[float | None]
    top: float
    reading: str


def monitor_strips(samples: Sequence[Any]) -> Drawing:
    """Strips of cores, memory, network and disk, and of each GPU's use, memory and power.

    samples: of `measure.monitor`, read by their fields. ValueError when there are none.
    """
    if not samples:
        raise ValueError("no samples to draw yet: the first comes one interval after the start")
    strips = [*_cpu_strips(samples), *_gpu_strips(samples)]
    times = [sample.seconds for sample in samples]
    parts = [part for row, strip in enumerate(strips) for part in _strip(row, strip, times)]
    bottom = len(strips) * (_STRIP_HEIGHT + 6) + 6
    parts.append(text(_STRIP_LEFT, bottom + 10, f"{times[0]:.1f} s", 9))
    parts.append(text(_STRIP_LEFT + _STRIP_WIDTH, bottom + 10, f"{times[-1]:.1f} s", 9, anchor="end"))
    words = f"{len(samples)} samples over {times[-1]:.1f} s: " + "; ".join(
        f"{strip.name} {strip.reading}" for strip in strips
    )
    return Drawing(sheet(_STRIP_LEFT + _STRIP_WIDTH + _STRIP_RIGHT, bottom + 16, parts), words)


def _cpu_strips(samples: Sequence[Any]) -> list[Strip]:
    cores = len(samples[-1].cpu.cores_busy)
    busy = [sum(sample.cpu.cores_busy) for sample in samples]
    watched = [float(sum(p.rss_bytes for p in sample.cpu.processes)) for sample in samples]
    wire = [sum(got + sent for got, sent in sample.cpu.network.values()) for sample in samples]
    disk = [sum(sample.cpu.disk) for sample in samples]
    return [
        Strip("cores busy", busy, cores, f"at last {busy[-1]:.2f}, mean {fmean(busy):.2f} of {cores}"),
        _bytes_strip("memory, these processes", watched),
        _bytes_strip("network, all interfaces", wire, "/s"),
        _bytes_strip("disk", disk, "/s"),
    ]


def _bytes_strip(name: str, values: list[float], per: str = "") -> Strip:
    most = max(values)
    return Strip(
        name, values, most or 1.0, f"{format_bytes(values[-1])}{per}, most {format_bytes(most)}{per}"
    )


def _gpu_strips(samples: Sequence[Any]) -> list[Strip]:
    strips = []
    for index, gpu in enumerate(samples[-1].gpus):
        own = [sample.gpus[index] for sample in samples]
        for name, values, top, unit in (
            ("busy", [g.busy for g in own], 1.0, "{:.0%}"),
            ("memory", [g.memory_used_bytes for g in own], gpu.memory_total_bytes, ""),
            ("power", [g.power_watts for g in own], gpu.power_limit_watts, "{:.0f} W"),
        ):
            known = [value for value in values if value is not None]
            if not known:
                strips.append(Strip(f"GPU {gpu.index} {name}", values, 1.0, "not told"))
                continue
            last, most = (unit.format(v) if unit else format_bytes(v) for v in (known[-1], max(known)))
            strips.append(
                Strip(f"GPU {gpu.index} {name}", values, top or max(known) or 1.0, f"{last}, most {most}")
            )
    return strips


def _strip(row: int, strip: Strip, times: Sequence[float]) -> list[str]:
    top = row * (_STRIP_HEIGHT + 6) + 4
    base, span = top + _STRIP_HEIGHT, (times[-1] - times[0]) or 1.0
    points = [
        (
            _STRIP_LEFT + _STRIP_WIDTH * (at - times[0]) / span,
            base - _STRIP_HEIGHT * min(value / strip.top, 1.0),
        )
        for at, value in zip(times, strip.values, strict=True)
        if value is not None
    ]
    return [
        box((_STRIP_LEFT, top, _STRIP_WIDTH, _STRIP_HEIGHT), "#f4f4f4", strip.name),
        area(points, base, RANK_COLOURS[row % len(RANK_COLOURS)]),
        text(_STRIP_LEFT - 8, top + _STRIP_HEIGHT / 2 + 4, strip.name, anchor="end"),
        text(_STRIP_LEFT + _STRIP_WIDTH + 8, top + _STRIP_HEIGHT / 2 + 4, strip.reading),
    ]
