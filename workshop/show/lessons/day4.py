"""Day 4: magnitudes and what a scale has room for (41), trainings in few bits (42), harm of eight (43)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.show.style import LIMIT, MEASURED, Picture, legend, name_axes, new_figure, rank_colour


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
    for words, limit in limits.items():
        axis.axhline(limit, color=LIMIT, linewidth=0.9, linestyle="--")
        axis.text(0, limit, words, fontsize=8, color=LIMIT, va="bottom")
    axis.set_yscale("log")
    name_axes(axis, "layer", "magnitude")
    legend(figure, 4)
    said = ", ".join(f"{name} {min(v):.1e} to {max(v):.1e}" for name, v in largest.items())
    return Picture(figure, f"largest magnitudes by layer: {said}")


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
    said = ", ".join(f"{name} cuts in {number} of {len(amax)} steps" for name, number in cut.items())
    return Picture(figure, f"amax and scales: {said}")


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
    said = "; ".join(
        f"{group}: " + ", ".join(f"{name} {v:.1%}" for name, v in row.items())
        for group, row in values.items()
    )
    return Picture(figure, f"{label} by group: {said}")


def harm_by_way(harm: Mapping[str, float]) -> Picture:
    """KL divergence from the unharmed model for each way to serve it, the least on top (log scale)."""
    ways = sorted(harm, key=lambda name: harm[name])
    figure, axis = new_figure(7.4, 0.7 + 0.26 * len(ways))
    axis.barh(ways, [harm[name] for name in ways], 0.7, color=MEASURED)
    for place, name in enumerate(ways):
        axis.text(1.05 * harm[name], place, f"{harm[name]:.4f}", va="center", fontsize=8)
    axis.set_xscale("log")
    axis.set_xlim(right=3 * max(harm.values()))
    axis.invert_yaxis()
    name_axes(axis, "KL divergence from the unharmed model, nats a token")
    said = ", ".join(f"{name} {harm[name]:.4f}" for name in ways)
    return Picture(figure, f"KL divergence by way to serve, least first: {said}")


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
