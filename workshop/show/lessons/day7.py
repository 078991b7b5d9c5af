"""Day 7: which near copies are found, and how often each sample was read (71)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.show.grids import no_lines
from workshop.show.style import (
    LIMIT,
    Picture,
    legend,
    name_axes,
    new_figure,
    rank_colour,
)

READ_OFF = {
    "less often": LIMIT,
    "as often as wanted": "#DCE6EE",
    "once more": "#E69F00",
    "more than that": "#7A4A00",
}
"""Colours of a sample by how often it was read, beside what was wanted."""


def chance_to_be_found(
    curves: Mapping[str, tuple[int, int]], measured: Mapping[str, Mapping[float, float]]
) -> Picture:
    """The chance that two texts share a bucket, by their Jaccard similarity: 1 - (1 - s^rows)^bands.

    Args:
        curves: by name, the number of bands and the hashes (rows) in each.
        measured: for some of these names, by similarity, the share of pairs that was found: drawn as points.

    Raises:
        ValueError: measured has a name that curves has not.
    """
    if unknown := set(measured) - set(curves):
        raise ValueError(f"no curve for {', '.join(sorted(unknown))}; there are {', '.join(curves)}")
    figure, axis = new_figure(6.6, 3.2)
    steps = [step / 200 for step in range(201)]
    for index, (name, (bands, rows)) in enumerate(curves.items()):
        colour = rank_colour(index)
        axis.plot(steps, [1 - (1 - s**rows) ** bands for s in steps], color=colour, label=name)
        if points := measured.get(name):
            style = {"color": colour, "linestyle": "none", "markersize": 7, "label": f"{name}, measured"}
            axis.plot(list(points), list(points.values()), marker="o", **style)
    name_axes(axis, "Jaccard similarity of two texts", "chance to be found")
    legend(figure, 2)
    middle = ", ".join(
        f"{name} finds half at {(1 - 0.5 ** (1 / b)) ** (1 / r):.2f}" for name, (b, r) in curves.items()
    )
    return Picture(figure, f"chance to be found by similarity; {middle}")


def times_read(ways: Mapping[str, tuple[Sequence[int], int]]) -> Picture:
    """A strip for each way to read: a line for each sample, in the colour of how often it was read.

    Args:
        ways: by name, how often each sample was read, in the order of the file, and how often is wanted.

    Raises:
        ValueError: the ways are not of as many samples.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    lengths = {name: len(counts) for name, (counts, _) in ways.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"as many samples in each way, not {lengths}")
    rows = [[1 + max(-1, min(2, count - wanted)) for count in counts] for counts, wanted in ways.values()]
    figure, axis = new_figure(8.4, 0.42 * len(ways) + 1.0)
    colours = ListedColormap(list(READ_OFF.values()))
    axis.imshow(rows, cmap=colours, vmin=-0.5, vmax=3.5, aspect="auto", interpolation="nearest")
    for row in range(1, len(rows)):
        axis.axhline(row - 0.5, color="white", linewidth=6)
    axis.set_yticks(range(len(ways)), list(ways))
    no_lines(axis)
    name_axes(axis, "sample, in the order of the file")
    legend(figure, 4, handles={name: Patch(color=colour) for name, colour in READ_OFF.items()})
    words = "; ".join(
        f"{name}: {min(counts)} to {max(counts)} times, {wanted} wanted"
        for name, (counts, wanted) in ways.items()
    )
    return Picture(figure, f"how often each sample was read: {words}")
