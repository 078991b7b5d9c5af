"""Who works how much under a causal mask: the matrix of scores, coloured by the rank that computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.show.style import Picture, new_figure, rank_colour


def causal_work(owners: Mapping[str, Sequence[int]]) -> Picture:
    """One panel for each way to deal out a sequence: queries downwards, keys to the right.

    owners: by name, the rank that holds each of the equal runs of positions, first to last. A rank computes
    what is below the diagonal in its rows; the busiest rank's share over the mean stands above.

    Raises ValueError where there is nothing to draw.
    """
    if not owners or not all(owners.values()):
        raise ValueError("no runs to draw; give at least one way, with the rank that holds each run")
    figure, axes = new_figure(3.2 * len(owners), 3.2, columns=len(owners))
    words = []
    for axis, (name, ranks) in zip(axes if len(owners) > 1 else [axes], owners.items(), strict=True):
        busiest = _busiest(ranks)
        _panel(axis, ranks)
        axis.set_title(f"{name}: busiest rank {busiest:.2f} x mean", fontsize=9, loc="left")
        words.append(f"{name}, busiest rank {busiest:.2f} times the mean")
    return Picture(figure, f"scores under a causal mask by rank: {'; '.join(words)}")


def _busiest(ranks: Sequence[int]) -> float:
    """Area below the diagonal of the busiest rank's rows, over the mean of all."""
    area: dict[int, float] = {}
    for row, rank in enumerate(ranks):
        area[rank] = area.get(rank, 0.0) + row + 0.5
    return max(area.values()) * len(area) / sum(area.values())


def _panel(axis: Any, ranks: Sequence[int]) -> None:
    from matplotlib.patches import Polygon

    runs = len(ranks)
    for row, rank in enumerate(ranks):
        corners = [(0, row), (row, row), (row + 1, row + 1), (0, row + 1)]
        axis.add_patch(Polygon(corners, facecolor=rank_colour(rank), edgecolor="white", linewidth=0.8))
        axis.text(-0.15, row + 0.5, f"rank {rank}", ha="right", va="center", fontsize=7)
    axis.plot([0, runs], [0, runs], color="#888888", linewidth=0.8)
    axis.set_xlim(-1.6 * runs / 8, runs)
    axis.set_ylim(runs, 0)
    axis.set_aspect("equal")
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_xlabel("keys", fontsize=8)
    axis.spines[:].set_visible(False)
