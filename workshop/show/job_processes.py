"""Who starts whom in a job: the scheduler, the batch script, one torchrun a node, its ranks."""

from __future__ import annotations

from typing import Any

from workshop.show.style import Picture, new_figure, rank_colour

_LEFT, _GAP = 2.5, 0.3
_PALE = ("white", "#F0E442", "#56B4E9", "#E69F00")  # black words can be read on these


def job_tree(nnodes: int = 2, nproc_per_node: int = 2) -> Picture:
    """The processes of a job of ``nnodes`` nodes, from sbatch to the ranks, and where they meet."""
    width = max(2.2, 1.15 * nproc_per_node + 0.4)
    figure, axis = new_figure(min(11.0, 2.6 + 1.35 * nnodes * width / 1.6), 3.7)
    _box(axis, 0.0, 3.2, (1.9, 0.6), "you: sbatch")
    _box(axis, 0.0, 2.1, (1.9, 0.6), "slurmctld:\nthe queue")
    _arrow(axis, (0.95, 3.18), (0.95, 2.74))
    for node in range(nnodes):
        x = _LEFT + node * (width + _GAP)
        _node(axis, x, width, (node, nproc_per_node))
        _arrow(axis, (_LEFT + width / 2, 2.58), (x + width / 2, 2.09))
        if node:
            _arrow(axis, (x + 0.13, 1.75), (_LEFT + width - 0.13, 1.75), "--")
    _box(axis, _LEFT + 0.15, 3.3, (width - 0.3, 0.5), "job.sbatch (bash)")
    _box(axis, _LEFT + 0.15, 2.6, (width - 0.3, 0.42), "srun: one task a node")
    _arrow(axis, (_LEFT + width / 2, 3.28), (_LEFT + width / 2, 3.06))
    _arrow(axis, (1.92, 2.4), (_LEFT + 0.12, 3.45))
    if nnodes > 1:
        told = "dashed: they meet at \\$head:\\$port,\nheld open by node 0's torchrun"
        axis.text(_LEFT + width + 0.4, 3.3, told, fontsize=8, va="center")
    axis.set_xlim(-0.1, _LEFT + nnodes * (width + _GAP))
    axis.set_ylim(-0.1, 4.35)
    axis.axis("off")
    words = (
        f"sbatch hands job.sbatch to node 0, its srun starts {nnodes} torchruns, they start "
        f"{nnodes * nproc_per_node} ranks and meet at one address"
    )
    return Picture(figure, words)


def _node(axis: Any, x: float, width: float, which: tuple[int, int]) -> None:
    """One node's frame, its torchrun and its ranks; ``which``: its number, and ranks a node."""
    from matplotlib.patches import FancyBboxPatch

    node, num_ranks = which
    tall = 4.1 if node == 0 else 2.55
    style: Any = {"boxstyle": "square,pad=0.05", "facecolor": "#EEEEEE", "edgecolor": "#BBBBBB"}
    axis.add_patch(FancyBboxPatch((x, 0.05), width, tall, **style))
    axis.text(x + width - 0.05, tall - 0.1, f"node {node}", ha="right", va="center", fontsize=8)
    _box(axis, x + 0.15, 1.45, (width - 0.3, 0.6), "torchrun (its agent)")
    step = (width - 0.3) / num_ranks
    for local in range(num_ranks):
        rank, at = node * num_ranks + local, x + 0.21 + local * step
        _box(axis, at, 0.3, (step - 0.12, 0.6), f"rank {rank}", rank_colour(rank))
        _arrow(axis, (x + width / 2, 1.43), (at + (step - 0.12) / 2, 0.94))


def _box(axis: Any, x: float, y: float, size: tuple[float, float], text: str, colour: str = "white") -> None:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0.02,rounding_size=0.06"
    axis.add_patch(FancyBboxPatch((x, y), *size, boxstyle=style, facecolor=colour, edgecolor="#333333"))
    shade = "black" if colour in _PALE else "white"
    axis.text(x + size[0] / 2, y + size[1] / 2, text, ha="center", va="center", fontsize=8, color=shade)


def _arrow(axis: Any, start: tuple[float, float], end: tuple[float, float], look: str = "-") -> None:
    axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "#555555", "linestyle": look})
