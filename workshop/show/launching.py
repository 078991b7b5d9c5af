"""What happens when a parallel cell runs: one notebook, N processes, one text."""

from __future__ import annotations

from workshop.show.style import Picture, new_figure, rank_colour


def parallel_cell(ranks: int = 4) -> Picture:
    """The notebook, the ranks it starts, the group they talk in, and the text that comes back."""
    from matplotlib.patches import FancyBboxPatch

    figure, axis = new_figure(6.6, 2.3)

    def box(x: float, y: float, size: tuple[float, float], text: str, colour: str) -> None:
        style = "round,pad=0.02,rounding_size=0.08"
        axis.add_patch(FancyBboxPatch((x, y), *size, boxstyle=style, facecolor=colour, edgecolor="#333333"))
        shade = "white" if colour != "white" else "black"
        axis.text(x + size[0] / 2, y + size[1] / 2, text, ha="center", va="center", fontsize=8, color=shade)

    def arrow(start: tuple[float, float], end: tuple[float, float]) -> None:
        axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "#555555"})

    middle = ranks / 2 - 0.4
    box(0, middle, (1.7, 0.8), f"your notebook\n%%torchrun -n {ranks}", "white")
    box(6.6, middle, (1.7, 0.8), "one text,\nequal lines folded", "white")
    for rank in range(ranks):
        y = ranks - 1 - rank + 0.15
        box(3.2, y, (1.8, 0.7), f"rank {rank}\na process of its own", rank_colour(rank))
        arrow((1.8, middle + 0.4), (3.15, y + 0.35))
        arrow((5.05, y + 0.35), (6.55, middle + 0.4))
        if rank:
            axis.plot([4.1, 4.1], [y + 0.74, y + 0.96], color="black", linewidth=2.5)
    axis.text(4.1, -0.25, "the process group: they talk to one another", ha="center", fontsize=8)
    axis.set_xlim(-0.1, 8.4)
    axis.set_ylim(-0.4, ranks + 0.05)
    axis.axis("off")
    return Picture(figure, f"a notebook starts {ranks} ranks, they talk to one another, one text comes back")
