"""Who starts whom in a job: the scheduler, the batch script, one torchrun a node, its ranks."""

from __future__ import annotations

from workshop.show.style import Picture, new_figure, rank_colour


def job_tree(nnodes: int = 2, nproc_per_node: int = 2) -> Picture:
    """The processes of a job of ``nnodes`` nodes, from sbatch to the ranks, and where they meet."""
    from matplotlib.patches import FancyBboxPatch

    width = max(2.2, 1.15 * nproc_per_node + 0.4)
    figure, axis = new_figure(min(11.0, 2.6 + 1.35 * nnodes * width / 1.6), 3.7)

    def box(x: float, y: float, size: tuple[float, float], text: str, colour: str = "white") -> None:
        style = "round,pad=0.02,rounding_size=0.06"
        axis.add_patch(FancyBboxPatch((x, y), *size, boxstyle=style, facecolor=colour, edgecolor="#333333"))
        shade = "black" if colour in ("white", "#F0E442", "#56B4E9", "#E69F00") else "white"
        axis.text(x + size[0] / 2, y + size[1] / 2, text, ha="center", va="center", fontsize=8, color=shade)

    def arrow(start: tuple[float, float], end: tuple[float, float], look: str = "-") -> None:
        drawn = {"arrowstyle": "->", "color": "#555555", "linestyle": look}
        axis.annotate("", end, start, arrowprops=drawn)

    left = 2.5
    box(0.0, 3.2, (1.9, 0.6), "you: sbatch", "white")
    box(0.0, 2.1, (1.9, 0.6), "slurmctld:\nthe queue", "white")
    arrow((0.95, 3.18), (0.95, 2.74))
    for node in range(nnodes):
        x = left + node * (width + 0.3)
        tall = 4.1 if node == 0 else 2.55
        axis.add_patch(
            FancyBboxPatch(
                (x, 0.05), width, tall, boxstyle="square,pad=0.05", facecolor="#EEEEEE", edgecolor="#BBBBBB"
            )
        )
        axis.text(
            x + width - 0.05, tall - 0.1, f"node {node}", ha="right", va="center", fontsize=8, color="#555555"
        )
        box(x + 0.15, 1.45, (width - 0.3, 0.6), "torchrun (its agent)", "white")
        for local in range(nproc_per_node):
            rank = node * nproc_per_node + local
            step = (width - 0.3) / nproc_per_node
            at = x + 0.15 + local * step
            box(at, 0.3, (step - 0.12, 0.6), f"rank {rank}", rank_colour(rank))
            arrow((x + width / 2, 1.43), (at + (step - 0.12) / 2, 0.94))
        arrow((left + width / 2, 2.58), (x + width / 2, 2.09))
        if node:
            arrow((x + 0.13, 1.75), (left + width - 0.13, 1.75), "--")
    box(left + 0.15, 3.3, (width - 0.3, 0.5), "job.sbatch (bash)", "white")
    box(left + 0.15, 2.6, (width - 0.3, 0.42), "srun: one task a node", "white")
    arrow((left + width / 2, 3.28), (left + width / 2, 3.06))
    arrow((1.92, 2.4), (left + 0.12, 3.45))
    end = left + nnodes * (width + 0.3)
    if nnodes > 1:
        axis.text(
            left + width + 0.4,
            3.3,
            "dashed: they meet at \\$head:\\$port,\nheld open by node 0's torchrun",
            fontsize=8,
            va="center",
        )
    axis.set_xlim(-0.1, end)
    axis.set_ylim(-0.1, 4.35)
    axis.axis("off")
    words = (
        f"sbatch hands job.sbatch to node 0, its srun starts {nnodes} torchruns, they start "
        f"{nnodes * nproc_per_node} ranks and meet at one address"
    )
    return Picture(figure, words)
