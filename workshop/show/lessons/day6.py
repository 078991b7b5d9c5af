"""Day 6: who starts whom in a job (61), saves (61, 63), predicted beside published runs, time kept (64)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.facts.units import format_seconds
from workshop.predict.published_runs import Reproduced
from workshop.show.bars import at_end, bars_stacked
from workshop.show.grids import arrow, only_boxes, round_box
from workshop.show.style import (
    LIMIT,
    MEASURED,
    PREDICTED,
    Picture,
    legend,
    name_axes,
    new_figure,
    rank_colour,
)

_LEFT, _GAP = 2.5, 0.3


def job_tree(nnodes: int = 2, nproc_per_node: int = 2) -> Picture:
    """The processes of a job of ``nnodes`` nodes, from sbatch to the ranks, and where they meet."""
    width = max(2.2, 1.15 * nproc_per_node + 0.4)
    figure, axis = new_figure(min(11.0, 2.6 + 1.35 * nnodes * width / 1.6), 3.7)
    round_box(axis, (0.0, 3.2), (1.9, 0.6), "you: sbatch")
    round_box(axis, (0.0, 2.1), (1.9, 0.6), "slurmctld:\nthe queue")
    arrow(axis, (0.95, 3.18), (0.95, 2.74))
    for node in range(nnodes):
        x = _LEFT + node * (width + _GAP)
        _node(axis, x, width, (node, nproc_per_node))
        arrow(axis, (_LEFT + width / 2, 2.58), (x + width / 2, 2.09))
        if node:
            arrow(axis, (x + 0.13, 1.75), (_LEFT + width - 0.13, 1.75), "--")
    round_box(axis, (_LEFT + 0.15, 3.3), (width - 0.3, 0.5), "job.sbatch (bash)")
    round_box(axis, (_LEFT + 0.15, 2.6), (width - 0.3, 0.42), "srun: one task a node")
    arrow(axis, (_LEFT + width / 2, 3.28), (_LEFT + width / 2, 3.06))
    arrow(axis, (1.92, 2.4), (_LEFT + 0.12, 3.45))
    if nnodes > 1:
        told = "dashed: they meet at \\$head:\\$port,\nheld open by node 0's torchrun"
        axis.text(_LEFT + width + 0.4, 3.3, told, fontsize=8, va="center")
    only_boxes(axis, (-0.1, _LEFT + nnodes * (width + _GAP)), (-0.1, 4.35))
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
    round_box(axis, (x + 0.15, 1.45), (width - 0.3, 0.6), "torchrun (its agent)")
    step = (width - 0.3) / num_ranks
    for local in range(num_ranks):
        rank, at = node * num_ranks + local, x + 0.21 + local * step
        round_box(axis, (at, 0.3), (step - 0.12, 0.6), f"rank {rank}", rank_colour(rank))
        arrow(axis, (x + width / 2, 1.43), (at + (step - 0.12) / 2, 0.94))


def continued_losses(unbroken: Sequence[float], starts: Sequence[tuple[int, Sequence[float]]]) -> Picture:
    """``unbroken``: the loss of steps 1, 2, ...; ``starts``: (steps before it, losses) of each start."""
    figure, axis = new_figure(6.6, 2.7)
    steps = range(1, len(unbroken) + 1)
    axis.plot(steps, unbroken, color="#BBBBBB", linewidth=6, label="one process, no break")
    for number, (before, losses) in enumerate(starts):
        at = range(before + 1, before + 1 + len(losses))
        axis.plot(at, losses, marker="o", color=rank_colour(number), label=f"start {number + 1}")
        if number:
            axis.axvline(before + 0.5, color="#555555", linestyle=":", linewidth=1)
    name_axes(axis, "step", "loss")
    legend(figure, 4)
    pieces = ", ".join(f"start {n + 1} from step {before + 1}" for n, (before, _) in enumerate(starts))
    return Picture(figure, f"loss by step of an unbroken run, and on it the pieces: {pieces}")


def saves_in_time(saves: Mapping[str, tuple[float, float]]) -> Picture:
    """A bar for each kind of save: (seconds that training stands still, seconds until it is written).

    ValueError where a save is written before training goes on.
    """
    for name, (still, written) in saves.items():
        if not 0 <= still <= written:
            raise ValueError(f"{name}: stands still for {still} s and is written after {written} s")
    figure, axis = new_figure(6.4, 1.1 + 0.4 * len(saves))
    stands, goes_on = "training stands still", "written while it trains"
    rows = {name: {stands: 1e3 * still, goes_on: 1e3 * (end - still)} for name, (still, end) in saves.items()}
    bars_stacked(axis, rows, {stands: LIMIT, goes_on: PREDICTED})
    for place, (_, written) in enumerate(saves.values()):
        at_end(axis, 1e3 * written, place, format_seconds(written))
    axis.set_xlim(0, 1.2e3 * max(written for _, written in saves.values()))
    name_axes(axis, "milliseconds")
    legend(figure, 2)
    said = "; ".join(
        f"{name} stands still {format_seconds(still)} of {format_seconds(written)}"
        for name, (still, written) in saves.items()
    )
    return Picture(figure, said)


def predicted_and_published(runs: Sequence[Reproduced]) -> Picture:
    """How far each run's predicted device hours lie from the published ones: a dot, and both in words."""
    figure, axis = new_figure(7.2, 1.0 + 0.27 * len(runs))
    off = [100 * run.deviation for run in runs]
    reach = max(20.0, 1.2 * max(map(abs, off)))
    axis.axvspan(-15, 15, color="#EEEEEE", label="within 15 %")
    axis.axvline(0, color="#555555", linewidth=1)
    axis.plot(off, range(len(runs)), "o", color=MEASURED)
    for place, run in enumerate(runs):
        hours = f"{run.device_hours:,.0f} of {run.published_hours:,.0f} h"
        axis.text(1.05 * reach, place, hours, va="center", fontsize=8)
    axis.set_yticks(range(len(runs)), [run.run.name for run in runs])
    axis.invert_yaxis()
    axis.set_xlim(-reach, reach)
    name_axes(axis, "% that the prediction lies below (-) or above the published device hours")
    legend(figure, 4)
    said = "; ".join(f"{run.run.name} {run.off_by}" for run in runs)
    return Picture(figure, f"device hours, predicted against published: {said}")


def goodput_by_interval(
    minutes: Sequence[float], kept: dict[str, Sequence[float]], best: dict[str, float] | None = None
) -> Picture:
    """Share of the time kept by minutes between saves; a line for each name, a mark at its best interval."""
    figure, axis = new_figure(6.4, 3.0)
    for number, (name, shares) in enumerate(kept.items()):
        axis.plot(minutes, [100 * share for share in shares], color=rank_colour(number), label=name)
        if best and name in best:
            axis.axvline(best[name], color=rank_colour(number), linestyle=":", linewidth=1.2)
    axis.set_xscale("log")
    name_axes(axis, "minutes between two saves (dotted: Young's interval)", "% of the time kept")
    legend(figure, 4)
    tops = {name: max(shares) for name, shares in kept.items()}
    return Picture(figure, "time kept at best: " + ", ".join(f"{n} {s:.1%}" for n, s in tops.items()))
