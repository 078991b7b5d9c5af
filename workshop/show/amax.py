"""Largest magnitudes: by layer beside a format's range, and by step beside what delayed scaling expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.show.style import LIMIT, MEASURED, Picture, new_figure, rank_colour


def sizes_by_layer(
    largest: Mapping[str, Sequence[float]],
    typical: Mapping[str, Sequence[float]],
    limits: Mapping[str, float],
) -> Picture:
    """For each kind of tensor its largest and its median magnitude by layer, logarithmic; limits dashed."""
    figure, axis = new_figure(7.4, 3.4)
    for index, (name, values) in enumerate(largest.items()):
        axis.plot(
            range(len(values)), values, "o-", markersize=3, color=rank_colour(index), label=f"{name}, largest"
        )
        axis.plot(range(len(values)), typical[name], ":", color=rank_colour(index), label=f"{name}, median")
    for words, limit in limits.items():
        axis.axhline(limit, color=LIMIT, linewidth=0.9, linestyle="--")
        axis.text(0, limit, words, fontsize=8, color=LIMIT, va="bottom")
    axis.set_yscale("log")
    axis.set_xlabel("layer")
    axis.set_ylabel("magnitude")
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
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
    axis.set_xlabel("step")
    axis.set_ylabel("amax, and room for it")
    axis.legend(fontsize=8, frameon=False)
    cut = {
        name: sum(a > 1.001 * c for a, c in zip(amax, values, strict=True))
        for name, values in covered.items()
    }
    said = ", ".join(f"{name} cuts in {number} of {len(amax)} steps" for name, number in cut.items())
    return Picture(figure, f"amax and scales: {said}")


def bars_by_group(values: Mapping[str, Mapping[str, float]], label: str) -> Picture:
    """Groups of bars side by side, logarithmic, the number above each: values[group][name]."""
    figure, axis = new_figure(7.4, 2.8)
    names = list(next(iter(values.values())))
    wide = 0.8 / len(names)
    for index, name in enumerate(names):
        places = [group + index * wide for group in range(len(values))]
        heights = [values[group][name] for group in values]
        axis.bar(places, heights, 0.92 * wide, color=rank_colour(index), label=name)
        for place, height in zip(places, heights, strict=True):
            axis.text(place, height, f"{height:.1%}", ha="center", va="bottom", fontsize=7)
    axis.set_yscale("log")
    axis.set_xticks([group + 0.4 - wide / 2 for group in range(len(values))], list(values), fontsize=8)
    axis.set_ylabel(label)
    figure.legend(loc="outside upper center", ncols=len(names), fontsize=8, frameon=False)
    said = "; ".join(
        f"{group}: " + ", ".join(f"{name} {v:.1%}" for name, v in row.items())
        for group, row in values.items()
    )
    return Picture(figure, f"{label} by group: {said}")
