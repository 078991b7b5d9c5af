"""Day 1: tensors in memory (11), sizes of gradients (14), a queue of kernels (16), phases of a step (17)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from workshop.facts.units import format_seconds
from workshop.show.bars import at_end, bars_stacked
from workshop.show.grids import cell, only_boxes
from workshop.show.style import (
    LIMIT,
    PHASE_COLOURS,
    Picture,
    headed,
    legend,
    name_axes,
    new_figure,
    panels,
    rank_colour,
)

_QUEUE = {"handed over": "#E69F00", "Python waits": "#DDDDDD", "kernel runs": "#0072B2"}
_OTHER_PHASES = ("#BBBBBB", "#F0E442", "#0072B2", "#888888")


def storage_and_views(
    num_stored: int, views: Mapping[str, tuple[Sequence[int], Sequence[int], int]]
) -> Picture:
    """One storage as a row of boxes, and below it tables that read it, each number the place it comes from.

    num_stored: elements in the storage. views: by name, shape, strides and offset of one or two dims; an
    element (r, c) is read from place offset + r * stride0 + c * stride1. Boxes get darker along the storage.
    Beside a table stand its strides. One of one dim is outlined in the storage, too, with its steps.

    ValueError for a view that reads outside the storage, or of more than two dims.
    """
    places = {name: _places(name, *view, num_stored) for name, view in views.items()}
    single = [rows[0] for name, rows in places.items() if len(views[name][0]) == 1]
    width = max(num_stored, sum(len(rows[0]) + 1.9 for rows in places.values()))
    top = 3.4 if single else 2.3
    bottom = top + max(len(rows) for rows in places.values()) + 0.9
    figure, axis = new_figure(max(5.0, 0.36 * width), 0.36 * (bottom + 1.4))
    for place in range(num_stored):
        _stored(axis, place, 0, place, num_stored, outlined=any(place in line for line in single))
    for line in single:
        _steps(axis, line)
    axis.text(0, -0.3, "storage", fontsize=8, va="bottom")
    left = 0.0
    for name, rows in places.items():
        strides = views[name][1]
        axis.text(left, top - 0.3, name, fontsize=8, va="bottom", family="monospace")
        for row, line in enumerate(rows):
            for column, place in enumerate(line):
                _stored(axis, left + column, top + row, place, num_stored)
        axis.text(left + len(rows[0]) + 0.05, top + 0.47, f"→ {strides[-1]}", fontsize=8, va="center")
        if len(strides) == 2:
            axis.text(
                left + 0.47, top + len(rows) + 0.4, f"↓ {strides[0]}", fontsize=8, ha="center", va="center"
            )
        left += max(len(rows[0]), 0.22 * len(name)) + 1.9
    only_boxes(axis, (-0.3, max(width, left)), (bottom, -1.0))
    axis.set_aspect("equal")
    words = "; ".join(f"{name} reads {rows}" for name, rows in places.items())
    return Picture(figure, f"{num_stored} numbers stored; {words}")


def _steps(axis: Any, line: Sequence[int]) -> None:
    """An arc below the storage from each place that is read to the next one, with the step as its number."""
    for start, end in itertools.pairwise(line):
        if end == start:
            continue
        bent = {"arrowstyle": "->", "connectionstyle": f"arc3,rad={1.1 / (end - start)}", "color": "#555555"}
        axis.annotate("", (end + 0.4, 1.0), (start + 0.54, 1.0), arrowprops=bent)
        axis.text((start + end) / 2 + 0.47, 2.0, f"{end - start}", fontsize=7, ha="center", va="center")


def _places(
    name: str, shape: Sequence[int], strides: Sequence[int], offset: int, num_stored: int
) -> list[list[int]]:
    """Where each element of a view is read from."""
    if not 1 <= len(shape) <= 2 or len(shape) != len(strides):
        raise ValueError(
            f"{name} has shape {tuple(shape)} and strides {tuple(strides)}: draw one or two dims"
        )
    (rows, columns), (down, across) = ((1, *shape), (0, *strides)) if len(shape) == 1 else (shape, strides)
    places = [[offset + row * down + column * across for column in range(columns)] for row in range(rows)]
    flat = [place for line in places for place in line]
    if min(flat) < 0 or max(flat) >= num_stored:
        raise ValueError(f"{name} reads places {min(flat)} to {max(flat)} of a storage of {num_stored}")
    return places


def _stored(axis: Any, left: float, top: float, place: int, num_stored: int, outlined: bool = False) -> None:
    """A number of the storage, light at its beginning and dark at its end."""
    import matplotlib
    from matplotlib.colors import to_hex

    share = place / num_stored
    colour = to_hex(matplotlib.colormaps["Blues"](0.12 + 0.85 * share))
    look = {"edgecolor": "black", "linewidth": 1.5} if outlined else {"edgecolor": "white"}
    cell(axis, (left, top, 0.94, 0.94), colour, str(place), ink="black" if share < 0.5 else "white", **look)


def gradient_sizes(
    histograms: Mapping[str, Sequence[int]],
    lowest: int,
    zero_shares: Mapping[str, float],
    limits: Mapping[str, int],
) -> Picture:
    """A panel for each name but the first: its step line over powers of two, the first filled behind it.

    histograms: how many numbers have a magnitude from 2^k, for k from ``lowest`` on. zero_shares: by the same
    names, shown above the panels. limits: words for some powers, such as the smallest number of a format.
    """
    (first, behind), *others = histograms.items()
    figure, axes = panels(2.9 * len(others), 2.9, len(others))
    powers = range(lowest, lowest + len(behind) + 1)
    top = 1.15 * max(max(counts) for counts in histograms.values())
    for index, (axis, (name, counts)) in enumerate(zip(axes, others, strict=True), 1):
        filled = axis.stairs(behind, powers, color=rank_colour(0), fill=True, alpha=0.5)
        axis.stairs(counts, powers, color=rank_colour(index), linewidth=1.5)
        for words, power in limits.items():
            axis.axvline(power, color=LIMIT, linewidth=0.9, linestyle=":")
            axis.text(power, top, f" {words}", fontsize=8, color=LIMIT, va="top")
        axis.set_title(f"{name}: {zero_shares[name]:.1%} zero", fontsize=9)
        axis.set_ylim(0, top)
        axis.tick_params(labelleft=index == 1)
        name_axes(axis, "size of a gradient, power of two", "how many" if index == 1 else "")
    legend(figure, 1, above=True, handles={first: filled})
    zeros = ", ".join(f"{name} {share:.1%} zero" for name, share in zero_shares.items())
    return Picture(figure, f"sizes of gradients by power of two: {zeros}")


def phase_bars(seconds: Mapping[str, Mapping[str, float]], title: str = "") -> Picture:
    """A bar for each name (a rank, a step, a version of the code), made of its seconds by phase.

    seconds: by name, then by phase, as `measure.StepTimer` gives them. ValueError where there is none.
    """
    if not seconds or not any(sum(phases.values()) > 0 for phases in seconds.values()):
        raise ValueError("no seconds to draw: give at least one bar, by name, with seconds by phase")
    present = [
        phase
        for phase in dict.fromkeys([*PHASE_COLOURS, *(p for phases in seconds.values() for p in phases)])
        if any(phases.get(phase, 0.0) > 0 for phases in seconds.values())
    ]
    others = iter(_OTHER_PHASES * len(present))
    colours = {phase: PHASE_COLOURS.get(phase) or next(others) for phase in present}
    figure, axis = new_figure(7.4, 1.1 + 0.34 * len(seconds))
    milliseconds = {name: {phase: 1e3 * took for phase, took in row.items()} for name, row in seconds.items()}
    bars_stacked(axis, milliseconds, colours)
    for row, phases in enumerate(seconds.values()):
        whole = sum(phases.values())
        at_end(axis, 1e3 * whole, row, format_seconds(whole))
    axis.margins(x=0.12)
    axis.set_xlim(left=0)
    name_axes(axis, "milliseconds of a step")
    axis.set_title(title, fontsize=9, loc="left")
    legend(figure, 6)
    words = "; ".join(f"{name}: {_most(phases)}" for name, phases in seconds.items())
    return Picture(figure, headed(title, f"seconds by phase; {words}"))


def _most(phases: Mapping[str, float]) -> str:
    whole = sum(phases.values()) or 1.0
    first = max(phases, key=lambda phase: phases[phase])
    return f"{format_seconds(whole)}, most in {first} ({phases[first] / whole:.0%})"


def kernel_queue(launch: float, cases: Mapping[str, tuple[Sequence[float], Collection[int]]]) -> Picture:
    """Two lanes for each case: Python hands kernels over, and the GPU runs them in their order.

    launch: microseconds to hand a kernel over. cases: by name, how long each kernel runs, and the numbers of
    those after which Python waits until they have ended. ValueError where there is none.
    """
    if not any(kernels for kernels, _ in cases.values()):
        raise ValueError(
            "no kernels to draw: give at least one case, by name, with the lengths of its kernels"
        )
    from matplotlib.patches import Patch

    figure, axis = new_figure(7.4, 0.8 + 0.78 * len(cases))
    words = []
    for case, (name, (kernels, waits)) in enumerate(cases.items()):
        row, python, gpu = 3 * case, 0.0, 0.0
        for number, length in enumerate(kernels):
            _queue_box(axis, row, python, launch, "handed over", str(number))
            python += launch
            begin = max(python, gpu)
            _queue_box(axis, row + 1, begin, length, "kernel runs", str(number))
            gpu = begin + length
            if number in waits:
                _queue_box(axis, row, python, gpu - python, "Python waits")
                python = gpu
        axis.text(0, row - 0.6, name, fontsize=8, va="bottom")
        words.append(f"{name}: the GPU runs kernels for {sum(kernels):g} of {gpu:g} µs")
    axis.set_yticks(
        [3 * case + lane for case in range(len(cases)) for lane in (0, 1)], ["Python", "GPU"] * len(cases)
    )
    axis.set_ylim(3 * len(cases) - 1.3, -1.3)
    axis.tick_params(labelsize=8, length=2)
    axis.set_xlim(left=0)
    name_axes(axis, "microseconds")
    legend(figure, 3, handles={label: Patch(color=colour) for label, colour in _QUEUE.items()})
    return Picture(figure, "; ".join(words))


def _queue_box(axis: Any, row: float, left: float, width: float, kind: str, label: str = "") -> None:
    axis.barh(row, width, 0.86, left=left, color=_QUEUE[kind], edgecolor="white", linewidth=0.5)
    ink = "white" if kind == "kernel runs" else "black"
    axis.text(left + width / 2, row, label, ha="center", va="center", fontsize=7, color=ink)
