"""Where zeros lie, and how runs with several seeds spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.show.style import MEASURED, Picture, new_figure, rank_colour


def zero_patterns(masks: Mapping[str, Any]) -> Picture:
    """A panel for each name: a boolean matrix, what stays in colour."""
    from matplotlib.colors import ListedColormap

    figure, axes = new_figure(2.3 * len(masks), 2.5, columns=len(masks))
    shades = ListedColormap(["#EEEEEE", MEASURED])
    for axis, (name, mask) in zip(axes if len(masks) > 1 else [axes], masks.items(), strict=True):
        axis.imshow(mask, cmap=shades, vmin=0, vmax=1, interpolation="nearest", aspect="equal")
        axis.set_title(name, fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_visible(False)
    return Picture(figure, "which weights stay: " + ", ".join(masks))


def spread(values: Mapping[str, Sequence[float]], label: str) -> Picture:
    """A row for each name: a dot for every seed, a line at their mean."""
    figure, axis = new_figure(6.4, 0.9 + 0.4 * len(values))
    for index, seeds in enumerate(values.values()):
        axis.plot(seeds, [index] * len(seeds), "o", color=rank_colour(index), alpha=0.7)
        axis.plot([sum(seeds) / len(seeds)] * 2, [index - 0.3, index + 0.3], "-", color=rank_colour(index))
    axis.set_yticks(range(len(values)), list(values))
    axis.set_ylim(len(values) - 0.5, -0.5)
    axis.set_xlabel(label)
    means = ", ".join(f"{name} {sum(seeds) / len(seeds):.2f}" for name, seeds in values.items())
    return Picture(figure, f"{label}, a dot for each seed; means: {means}")
