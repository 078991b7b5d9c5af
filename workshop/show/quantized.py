"""What rounding does to numbers and to a model: grids over a histogram, outliers by channel, perplexity by
size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.show.style import LIMIT, MEASURED, PREDICTED, Picture, new_figure, rank_colour


def grid_steps(numbers: Sequence[float], grids: Mapping[str, Sequence[float]]) -> Picture:
    """A histogram of numbers, and below it for each name a row of ticks: the values that its grid has."""
    figure, axes = new_figure(6.8, 1.9 + 0.35 * len(grids), columns=1)
    bars, _, _ = axes.hist(numbers, bins=60, color=PREDICTED)
    top = max(bars)
    for row, (name, values) in enumerate(grids.items(), 1):
        height = -0.14 * top * row
        axes.plot(list(values), [height] * len(values), "|", color=rank_colour(row - 1), markersize=11)
        axes.annotate(
            name,
            (1, height),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8,
            annotation_clip=False,
        )
    axes.set_ylim(-0.14 * top * (len(grids) + 0.7), 1.05 * top)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("weight")
    return Picture(figure, "weights of a group, and the values of " + ", ".join(grids))


def channel_sizes(largest: Mapping[str, Sequence[float]], threshold: float) -> Picture:
    """A panel for each name: each input feature's largest magnitude, and a threshold (log scale)."""
    figure, axes = new_figure(8.4, 2.7, columns=len(largest))
    for axis, (name, values) in zip(axes if len(largest) > 1 else [axes], largest.items(), strict=True):
        colours = [LIMIT if value >= threshold else MEASURED for value in values]
        axis.vlines(range(len(values)), 1e-9, list(values), color=colours, linewidth=0.7)
        axis.axhline(threshold, color=LIMIT, linewidth=0.8, linestyle="--")
        axis.set_yscale("log")
        axis.set_ylim(0.8 * min(map(min, largest.values())), 2 * max(threshold, *map(max, largest.values())))
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("input feature")
    (axes if len(largest) == 1 else axes[0]).set_ylabel("largest |x|")
    above = [sum(value >= threshold for value in values) for values in largest.values()]
    said = ", ".join(f"{name}: {count}" for name, count in zip(largest, above, strict=True))
    return Picture(figure, f"largest input by feature; features that reach {threshold:g}: {said}")


def size_and_perplexity(found: Mapping[str, tuple[float, float]], unharmed: tuple[str, float]) -> Picture:
    """Perplexity over bytes a weight: a dot for each, a line for the whole model (name, value)."""
    figure, axis = new_figure(6.8, 3.6)
    name, level = unharmed
    axis.axhline(level, color=PREDICTED, linewidth=1.5)
    where = {"xycoords": ("axes fraction", "data"), "ha": "left", "va": "bottom", "fontsize": 8}
    axis.annotate(name, (0.01, level), **where)
    for index, (label, (size, score)) in enumerate(found.items()):
        told = f"{label}: {score:.1f}"
        axis.plot(size, score, "o", color=rank_colour(index), markersize=7, label=told)
    axis.set_xlabel("bytes a weight")
    axis.set_ylabel("perplexity")
    axis.margins(0.12, 0.12)
    axis.legend(fontsize=8, frameon=False, loc="upper right")
    said = ", ".join(f"{label} {score:.1f} at {size:.2f}" for label, (size, score) in found.items())
    return Picture(figure, f"perplexity by bytes a weight: {said}; {name} {level:.1f}")
