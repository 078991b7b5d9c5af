"""Day 0: what happens when a parallel cell runs."""

from __future__ import annotations

from workshop.show.grids import arrow, only_boxes, round_box
from workshop.show.style import Picture, new_figure, rank_colour


def parallel_cell(ranks: int = 4) -> Picture:
    """The notebook, the ranks it starts, their group, and the text that comes back."""
    figure, axis = new_figure(6.6, 2.3)
    middle = ranks / 2 - 0.4
    round_box(axis, (0, middle), (1.7, 0.8), f"your notebook\n%%torchrun -n {ranks}")
    round_box(axis, (6.6, middle), (1.7, 0.8), "one text,\nequal lines folded")
    for rank in range(ranks):
        y = ranks - 1 - rank + 0.15
        round_box(axis, (3.2, y), (1.8, 0.7), f"rank {rank}\na process of its own", rank_colour(rank))
        arrow(axis, (1.8, middle + 0.4), (3.15, y + 0.35))
        arrow(axis, (5.05, y + 0.35), (6.55, middle + 0.4))
        if rank:
            axis.plot([4.1, 4.1], [y + 0.74, y + 0.96], color="black", linewidth=2.5)
    axis.text(4.1, -0.25, "the process group: ranks that send each other data", ha="center", fontsize=8)
    only_boxes(axis, (-0.1, 8.4), (-0.4, ranks + 0.05))
    return Picture(figure, f"a notebook starts {ranks} ranks, they send each other data, one text comes back")
