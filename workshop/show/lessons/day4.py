"""Day 4: magnitudes and what a scale has room for (41), trainings in few bits (42), harm of eight (43)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.show.style import LIMIT, MEASURED, Picture, legend, name_axes, new_figure, panels, rank_colour


def sizes_by_layer(
    largest: Mapping[str, Sequence[float]],
    typical: Mapping[str, Sequence[float]],
    limits: Mapping[str, float],
) -> Picture:
    """For each kind of tensor its largest and its median magnitude by layer, logarithmic; limits dashed."""
    figure, axis = new_figure(7.4, 3.4)
    for index, (name, values) in enumerate(largest.items()):
        layers, colour = range(len(values)), rank_colour(index)
        axis.plot(layers, values, "o-", markersize=3, color=colour, label=f"{name}, largest")
        axis.plot(layers, typical[name], ":", color=colour, label=f"{name}, median")
    beside: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "annotation_clip": False}
    for words, limit in limits.items():
        axis.axhline(limit, color=LIMIT, linewidth=0.9, linestyle="--")
        axis.annotate(words, (1.01, limit), fontsize=8, color=LIMIT, va="center", **beside)
    axis.set_yscale("log")
    name_axes(axis, "layer", "magnitude")
    legend(figure, 4)
    words = ", ".join(f"{name} {min(v):.1e} to {max(v):.1e}" for name, v in largest.items())
    return Picture(figure, f"largest magnitudes by layer: {words}")


def delayed_scaling(amax: Sequence[float], covered: Mapping[str, Sequence[float]]) -> Picture:
    """amax of each step as bars, and what each scale had room for as lines; a bar above a line was cut."""
    figure, axis = new_figure(7.4, 2.8)
    steps = range(1, len(amax) + 1)
    axis.bar(steps, amax, color=MEASURED, alpha=0.4, label="amax of the step")
    for index, (name, values) in enumerate(covered.items()):
        axis.step(steps, values, where="mid", color=rank_colour(index + 1), linewidth=1.4, label=name)
    axis.set_yscale("log")
    name_axes(axis, "step", "amax, and room for it")
    legend(figure, 4)
    cut = {
        name: sum(a > 1.001 * c for a, c in zip(amax, values, strict=True))
        for name, values in covered.items()
    }
    words = ", ".join(f"{name} cuts in {number} of {len(amax)} steps" for name, number in cut.items())
    return Picture(figure, f"amax and scales: {words}")


def error_panels(
    sizes: Sequence[float],
    errors: Mapping[str, Mapping[str, Sequence[float]]],
    what: str,
    paired: bool = False,
) -> Picture:
    """A panel for each title: relative error over a size, both logarithmic; the same names in all panels.

    paired: names two by two share a colour, the second is dotted.
    """
    figure, axes = panels(8.4, 3.0, len(errors))
    for axis, (title, lines) in zip(axes, errors.items(), strict=True):
        for index, (name, values) in enumerate(lines.items()):
            colour, look = (index // 2, index % 2 * 2) if paired else (index, index % 3)
            thick, style = ((2.6, "-"), (1.9, "--"), (1.6, ":"))[look]  # equal ones show
            axis.plot(sizes, values, style, linewidth=thick, color=rank_colour(colour), label=name)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_ylim(0.02, 2)
        axis.set_title(title, fontsize=10)
        name_axes(axis, what, "relative error")
    legend(figure, 4)
    words = "; ".join(
        f"{title}: " + ", ".join(f"{name} {min(v):.1%} to {max(v):.1%}" for name, v in lines.items())
        for title, lines in errors.items()
    )
    return Picture(figure, f"relative error by {what}: {words}")


def bars_by_group(values: Mapping[str, Mapping[str, float]], label: str) -> Picture:
    """Groups of bars side by side, logarithmic, the number above each in percent: values[group][name]."""
    figure, axis = new_figure(7.4, 2.8)
    names = list(next(iter(values.values())))
    wide = 0.8 / len(names)
    for index, name in enumerate(names):
        places = [group + index * wide for group in range(len(values))]
        heights = [100 * values[group][name] for group in values]
        axis.bar(places, heights, 0.92 * wide, color=rank_colour(index), label=name)
        for place, height in zip(places, heights, strict=True):
            axis.text(place, height, f"{height:.1f}", ha="center", va="bottom", fontsize=7)
    axis.set_yscale("log")
    axis.set_xticks([group + 0.4 - wide / 2 for group in range(len(values))], list(values), fontsize=8)
    name_axes(axis, y=f"{label}, %")
    legend(figure, len(names), above=True)
    words = "; ".join(
        f"{group}: " + ", ".join(f"{name} {v:.1%}" for name, v in row.items())
        for group, row in values.items()
    )
    return Picture(figure, f"{label} by group: {words}")


def harm_by_way(harm: Mapping[str, float], rounded: Mapping[str, str] | None = None) -> Picture:
    """KL divergence from the unharmed model for each way to serve it, the least on top (log scale).

    rounded: what each way rounds; ways that round the same share a colour.
    """
    ways = sorted(harm, key=lambda name: harm[name])
    kinds = list(dict.fromkeys((rounded or {}).values()))
    figure, axis = new_figure(7.4, 0.7 + 0.26 * len(ways))
    for place, name in enumerate(ways):
        kind = rounded[name] if rounded else None
        colour = MEASURED if kind is None else rank_colour(kinds.index(kind))
        axis.barh(place, harm[name], 0.7, color=colour, label=kind)
        axis.text(1.05 * harm[name], place, f"{harm[name]:.4f}", va="center", fontsize=8)
    axis.set_yticks(range(len(ways)), ways)
    axis.set_xscale("log")
    axis.set_xlim(left=min(harm.values()) / 2, right=3 * max(harm.values()))
    axis.invert_yaxis()
    name_axes(axis, "KL divergence from the unharmed model, nats a token")
    if rounded:
        legend(figure, len(kinds), above=True)
    words = ", ".join(f"{name} {harm[name]:.4f}" for name in ways)
    return Picture(figure, f"KL divergence by way to serve, least first: {words}")


def three_products(tokens: int, inputs: int, outputs: int) -> Picture:
    """Forward, dgrad and wgrad of a linear layer: each matrix to scale, in the colour of its format."""
    colours = {"E4M3": rank_colour(4), "E5M2": rank_colour(1), "16 or 32 bits": "#DDDDDD"}
    size = {"tokens": tokens, "inputs": inputs, "outputs": outputs}
    forward = ("x", "E4M3", "tokens", "inputs"), ("Wᵀ", "E4M3", "inputs", "outputs"), "y"
    dgrad = ("dy", "E5M2", "tokens", "outputs"), ("W", "E4M3", "outputs", "inputs"), "dx"
    wgrad = ("dyᵀ", "E5M2", "outputs", "tokens"), ("x", "E4M3", "tokens", "inputs"), "dW"
    figure, axes = panels(8.4, 2.2, 3)
    titles, largest = ("forward", "dgrad", "wgrad"), max(size.values())
    gap = 0.4 * largest
    room = max(inputs + 2 * outputs, outputs + 2 * inputs, tokens + 2 * inputs) + 2.4 * gap
    for axis, title, (left, right, result) in zip(axes, titles, (forward, dgrad, wgrad), strict=True):
        made = (result, "16 or 32 bits", left[2], right[3])
        widths = sum(size[matrix[3]] for matrix in (left, right, made)) + 2 * gap
        place = -widths / 2
        for sign, (name, form, rows, columns) in zip(("", "@", "="), (left, right, made), strict=True):
            axis.text(place - gap / 2, 0, sign, ha="center", va="center", fontsize=11)
            high, wide = size[rows], size[columns]
            look = {"facecolor": colours[form], "edgecolor": "white", "label": form}
            axis.bar(place + wide / 2, high, wide, bottom=-high / 2, **look)
            axis.text(place + wide / 2, 0, name, ha="center", va="center", fontsize=10)
            place += wide + gap
        axis.set(xlim=(-room / 2, room / 2), ylim=(-0.85 * largest, 0.55 * largest), aspect="equal")
        axis.set_title(title, fontsize=10)
        axis.text(0, -0.8 * largest, f"sums over {left[3]}", ha="center", fontsize=9)
        axis.set_axis_off()
    legend(figure, 3)
    words = "y = x W^T and dx = dy W and dW = dy^T x: x and W in E4M3, dy in E5M2, sums in 16 or 32 bits"
    return Picture(figure, f"the three products of a linear layer: {words}")


def training_curves(
    losses: Mapping[str, Sequence[float]],
    beside: Mapping[str, Sequence[float]],
    label: str,
    log2: bool = False,
) -> Picture:
    """Two panels over steps: each run's loss, and the number called ``label`` of the runs in ``beside``.

    log2: draw that number on an axis of powers of two. ValueError for a run in ``beside`` that has no losses.
    """
    if unknown := set(beside) - set(losses):
        raise ValueError(f"{sorted(unknown)} have no losses here; known are {sorted(losses)}")
    figure, axes = new_figure(8.4, 3.2, columns=2)
    for index, (name, values) in enumerate(losses.items()):
        look = {"color": rank_colour(index), "linewidth": 1.3, "linestyle": "-" if index % 2 == 0 else "--"}
        axes[0].plot(range(1, len(values) + 1), values, label=name, **look)
        if name in beside:
            axes[1].plot(range(1, len(beside[name]) + 1), beside[name], **look)
    for axis, height in zip(axes, ("loss", label), strict=True):
        name_axes(axis, "step", height)
    if log2:
        axes[1].set_yscale("log", base=2)
    legend(figure, 4, above=True)
    ends = ", ".join(f"{name} {values[-1]:.3f}" for name, values in losses.items())
    return Picture(figure, f"loss by steps, at the end: {ends}; and {label} of {', '.join(beside)}")
