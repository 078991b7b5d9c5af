"""Which rank holds which part of a matrix: a rectangle, cut in columns or rows, a colour a rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workshop.show.style import Picture, new_figure, rank_colour

CUTS = ("columns", "rows", "whole")


def cut_matrices(matrices: Mapping[str, tuple[int, int, str]], ranks: int, title: str = "") -> Picture:
    """Matrices side by side, on one scale, in the order in which they are applied (x A: inputs are rows).

    matrices: by name, (rows, columns, how), how one of "columns", "rows", "whole" (grey: every rank has it).
    ValueError for another cut, or where what is cut does not divide by the ranks.
    """
    for name, (rows, columns, how) in matrices.items():
        if how not in CUTS:
            raise ValueError(f"{name} is cut by {how!r}; known are {', '.join(CUTS)}")
        if how != "whole" and (columns if how == "columns" else rows) % ranks:
            raise ValueError(
                f"{name} has {rows} rows and {columns} columns: its {how} do not divide by {ranks} ranks"
            )
    tallest = max(rows for rows, _, _ in matrices.values())
    gap = 0.15 * tallest
    figure, axis = new_figure(7.4, 2.4)
    left = 0.0
    for name, (rows, columns, how) in matrices.items():
        _matrix(axis, left, (rows, columns, how), ranks)
        axis.text(left + columns / 2, -0.06 * tallest, name, ha="center", va="bottom", fontsize=8)
        axis.text(
            left + columns / 2,
            rows + 0.04 * tallest,
            f"{rows} x {columns}",
            ha="center",
            va="top",
            fontsize=7,
        )
        left += columns + gap
    axis.set_xlim(-gap, left)
    axis.set_ylim(1.2 * tallest, -0.25 * tallest)
    axis.set_aspect("equal")
    axis.axis("off")
    said = "; ".join(
        f"{name} {'in ' if how != 'whole' else ''}{how}" for name, (_, _, how) in matrices.items()
    )
    axis.set_title(title or f"{ranks} ranks", fontsize=9, loc="left")
    return Picture(figure, f"{title + ', ' if title else ''}{ranks} ranks: {said}")


def _matrix(axis: Any, left: float, matrix: tuple[int, int, str], ranks: int) -> None:
    """One rectangle for each rank's part, with the rank's number in it."""
    from matplotlib.patches import Rectangle

    rows, columns, how = matrix
    parts = 1 if how == "whole" else ranks
    for rank in range(parts):
        wide = columns / (parts if how == "columns" else 1)
        tall = rows / (parts if how == "rows" else 1)
        x, y = left + (rank * wide if how == "columns" else 0), rank * tall if how == "rows" else 0
        colour = "#BBBBBB" if how == "whole" else rank_colour(rank)
        axis.add_patch(Rectangle((x, y), wide, tall, facecolor=colour, edgecolor="white", linewidth=1.0))
        if how != "whole":
            axis.text(
                x + wide / 2, y + tall / 2, f"{rank}", ha="center", va="center", fontsize=7, color="white"
            )
