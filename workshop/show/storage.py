"""A tensor as it lies in memory, and the table that its strides make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.show.style import Picture, new_figure, rank_colour


def storage_and_views(
    num_stored: int, views: Mapping[str, tuple[Sequence[int], Sequence[int], int]]
) -> Picture:
    """One storage as a row of boxes, and below it tables that read it, each number the place it comes from.

    num_stored: elements in the storage. views: by name, shape, strides and offset of one or two dims; an
    element (r, c) is read from place offset + r * stride0 + c * stride1. The colour is the storage's.

    ValueError for a view that reads outside the storage, or of more than two dims.
    """
    places = {name: _places(name, *view, num_stored) for name, view in views.items()}
    width = max(num_stored, sum(len(rows[0]) + 1.5 for rows in places.values()))
    tallest = max(len(rows) for rows in places.values())
    figure, axis = new_figure(max(5.0, 0.36 * width), 1.2 + 0.36 * tallest)
    for place in range(num_stored):
        _box(axis, place, 0, place, num_stored)
    axis.text(0, -0.3, "storage", fontsize=8, va="bottom")
    left = 0.0
    for name, rows in places.items():
        axis.text(left, 2.0, name, fontsize=8, va="bottom", family="monospace")
        for row, line in enumerate(rows):
            for column, place in enumerate(line):
                _box(axis, left + column, 2.3 + row, place, num_stored)
        left += max(len(rows[0]), 0.22 * len(name)) + 1.5
    axis.set_xlim(-0.3, max(width, left))
    axis.set_ylim(2.6 + tallest, -1.0)
    axis.set_aspect("equal")
    axis.axis("off")
    said = "; ".join(f"{name} reads {rows}" for name, rows in places.items())
    return Picture(figure, f"{num_stored} numbers stored; {said}")


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


def _box(axis: Any, left: float, top: float, place: int, num_stored: int) -> None:
    from matplotlib.patches import Rectangle

    colour = rank_colour(place * 6 // num_stored)
    axis.add_patch(Rectangle((left, top), 0.94, 0.94, facecolor=colour, alpha=0.75, edgecolor="white"))
    axis.text(left + 0.47, top + 0.5, str(place), ha="center", va="center", fontsize=7, color="white")
