"""Day 7, preferences (74): how far a preference reaches, and what leaks to answers that nobody judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.show.style import Picture, legend, name_axes, panels, rank_colour


def reach_and_leak(
    expected: Mapping[float, float],
    shares: Mapping[float, Sequence[float]],
    leaked: Mapping[float, Sequence[float]],
    before: float,
) -> Picture:
    """Two panels: the share of what judges like better, by beta; the share of answers that are in no pair.

    Args:
        expected: by beta, the share of the better liked answer where the loss is smallest: a line.
        shares: by beta, that share in each run: points.
        leaked: by the weight of a likelihood term in the loss, the share of answers in no pair, in each run.
        before: that share before training: a line across.
    """
    figure, (left, right) = panels(7.6, 2.7, 2)
    points = {"linestyle": "none", "marker": "o", "markersize": 7}
    left.plot(list(expected), list(expected.values()), color=rank_colour(0), label="predicted")
    for axis, rows, places, colour, label in (
        (left, shares, list(shares), rank_colour(0), "measured"),
        (right, leaked, list(range(len(leaked))), rank_colour(1), "in no pair, measured"),
    ):
        where = [place for place, row in zip(places, rows.values(), strict=True) for _ in row]
        values = [value for row in rows.values() for value in row]
        axis.plot(where, values, color=colour, label=label, **points)
        axis.set_ylim(0, 1.03)
    right.axhline(before, color="#888888", linestyle="--", linewidth=1, label="before")
    left.set_xscale("log")
    left.set_xticks(list(shares), [f"{beta:g}" for beta in shares])
    left.minorticks_off()
    right.set_xticks(range(len(leaked)), [f"{weight:g}" for weight in leaked])
    right.set_xlim(-0.5, len(leaked) - 0.5)
    name_axes(left, "beta", "better liked, of the two")
    name_axes(right, "weight of the likelihood term", "neither, of all answers")
    legend(figure, 4)
    reach = ", ".join(f"{sum(row) / len(row):.0%} at beta {beta:g}" for beta, row in shares.items())
    leak = ", ".join(f"{sum(row) / len(row):.0%} with weight {weight:g}" for weight, row in leaked.items())
    return Picture(figure, f"better liked, of the two: {reach}; neither: {before:.0%} before, {leak}")
