"""What each rank holds before and after a collective, drawn from the numbers that the ranks reported.

A column is a rank, a box is a value. A box has the colour of the rank that the value came from; a
value that is a sum over ranks is white with a thick edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.show.style import Picture, new_figure, rank_colour

Held = Mapping[int, Sequence[float]]


def before_and_after(before: Held, after: Held, name: str) -> Picture:
    """Two panels: values by rank before and after the collective ``name``.

    ``before[rank]`` and ``after[rank]`` are short lists of numbers. A value after the collective that
    some rank held before keeps that rank's colour; any other is new, a result of the reduction.
    """
    figure, axes = new_figure(6.6, 0.5 + 0.42 * max(map(len, [*before.values(), *after.values()])), columns=2)
    owner = {value: rank for rank, values in sorted(before.items(), reverse=True) for value in values}
    tallest = max(map(len, [*before.values(), *after.values()]))
    for axis, held, title in ((axes[0], before, "before"), (axes[1], after, f"after {name}")):
        _draw(axis, held, owner, tallest)
        axis.set_title(title, fontsize=10)
    return Picture(figure, f"what each rank holds before and after {name}")


def _draw(axis: Any, held: Held, owner: Mapping[float, int], tallest: int) -> None:
    from matplotlib.patches import Rectangle

    for column, rank in enumerate(sorted(held)):
        for row, value in enumerate(held[rank]):
            source = owner.get(value)
            face = "white" if source is None else rank_colour(source)
            box = Rectangle((column + 0.06, -row - 0.94), 0.88, 0.88, facecolor=face, edgecolor="#333333")
            box.set_linewidth(1.0 if source is not None else 1.8)
            axis.add_patch(box)
            colour = "black" if source is None else "white"
            axis.text(
                column + 0.5, -row - 0.5, f"{value:g}", ha="center", va="center", color=colour, fontsize=9
            )
    axis.set_xlim(0, len(held))
    axis.set_ylim(-tallest, 0)
    axis.set_xticks([i + 0.5 for i in range(len(held))], [f"rank {r}" for r in sorted(held)], fontsize=8)
    axis.set_yticks([])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
