"""Day 6: who starts whom in a job (61), ranks that break (62), saves (61, 63), a plan beside runs (64)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.facts.units import format_seconds
from workshop.predict.published_runs import Reproduced
from workshop.show.bars import at_end, bars_stacked
from workshop.show.grids import arrow, cell, no_lines, only_boxes, round_box
from workshop.show.style import (
    LIMIT,
    MEASURED,
    PREDICTED,
    Picture,
    legend,
    name_axes,
    new_figure,
    panels,
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
        legend = "dashed: they meet at \\$head:\\$port,\nheld open by node 0's torchrun"
        axis.text(_LEFT + width + 0.4, 3.3, legend, fontsize=8, va="center")
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


def states_of_ranks(
    grids: Mapping[str, Sequence[Sequence[str]]], colours: Mapping[str, str], across: str = "step"
) -> Picture:
    """A grid for each title: a row for each rank, a box for each step, in the colour of its state.

    across: what is counted from left to right, from 0. ValueError for a state that has no colour.
    """
    unknown = {state for rows in grids.values() for row in rows for state in row} - set(colours)
    if unknown:
        raise ValueError(f"no colour for {', '.join(sorted(unknown))}; there are {', '.join(colours)}")
    wide = sum(len(rows[0]) for rows in grids.values())
    tall = max(map(len, grids.values()))
    figure, axes = panels(0.5 * wide + 1.0 * len(grids), 0.4 * tall + 1.1, len(grids))
    for axis, (title, rows) in zip(axes, grids.items(), strict=True):
        for rank, row in enumerate(rows):
            for place, state in enumerate(row):
                look: dict[str, Any] = {"edgecolor": "white", "linewidth": 3}
                cell(axis, (place - 0.5, rank - 0.5, 1, 1), colours[state], **look)
        axis.set_title(title, fontsize=9)
        axis.set_xlim(-0.5, len(rows[0]) - 0.5)
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_xticks(range(len(rows[0])))
        axis.set_yticks(range(len(rows)))
        no_lines(axis)
        name_axes(axis, across, "rank")
    legend(figure, 4, handles={state: _patch(colour) for state, colour in colours.items()})
    words = (
        f"{title + ': ' if title else ''}rank {rank} {', '.join(row)}"
        for title, rows in grids.items()
        for rank, row in enumerate(rows)
    )
    return Picture(figure, f"by {across}, " + "; ".join(words))


def _patch(colour: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=colour)


def counted_causes(counts: Mapping[str, int], marked: Sequence[str], words: tuple[str, str]) -> Picture:
    """A bar with its number for each cause, ``marked`` ones coloured; words: what the two colours mean."""
    figure, axis = new_figure(6.4, 0.9 + 0.21 * len(counts))
    for place, (cause, count) in enumerate(counts.items()):
        axis.barh(place, count, 0.7, color=LIMIT if cause in marked else PREDICTED)
        at_end(axis, count, place, str(count))
    axis.set_yticks(range(len(counts)), list(counts), fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.08 * max(counts.values()))
    name_axes(axis, "interruptions")
    legend(figure, 2, handles={words[0]: _patch(LIMIT), words[1]: _patch(PREDICTED)})
    return Picture(figure, "; ".join(f"{cause} {count}" for cause, count in counts.items()))


def rows_read(written: Sequence[int], read: Sequence[Sequence[tuple[int, int, int]]]) -> Picture:
    """Files at the left, as tall as their rows, ranks at the right, and who reads which rows of which file.

    written: rows in each file; read: for each rank, (file, first row, row after the last) of what it reads.
    """
    total = sum(written)
    figure, axis = new_figure(6.4, 0.9 + 0.25 * total)
    for number, count in enumerate(written):
        top = sum(written[:number])
        for row in range(top, top + count):
            _row(axis, (0, row), row, number)
        axis.text(-0.15, top + count / 2, f"{number}.pt", ha="right", va="center", fontsize=9)
    for rank, parts in enumerate(read):
        for number, first, end in parts:
            for row in range(first, end):
                _row(axis, (4, row + 0.6 * rank), row, number)
            arrow(axis, (1.65, (first + end) / 2), (3.95, (first + end) / 2 + 0.6 * rank))
        middle = (parts[0][1] + parts[-1][2]) / 2 + 0.6 * rank
        axis.text(5.75, middle, f"rank {rank}", va="center", fontsize=9)
    for x, words in ((0.8, f"written by {len(written)} ranks"), (4.8, f"read by {len(read)} ranks")):
        axis.text(x, -0.4, words, ha="center", va="bottom", fontsize=9)
    only_boxes(axis, (-0.8, 6.6), (total + 0.6 * (len(read) - 1) + 0.2, -1.2))
    reads = (
        f"rank {rank} reads " + ", ".join(f"rows {a} to {b - 1} of {n}.pt" for n, a, b in parts)
        for rank, parts in enumerate(read)
    )
    return Picture(figure, "; ".join(reads))


def _row(axis: Any, place: tuple[float, float], row: int, file: int) -> None:
    """A row of a matrix in the colour of the file that holds it."""
    look: dict[str, Any] = {"edgecolor": "white", "linewidth": 2}
    cell(axis, (*place, 1.6, 1), rank_colour(file), f"row {row}", **look)


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
    words = "; ".join(
        f"{name} stands still {format_seconds(still)} of {format_seconds(written)}"
        for name, (still, written) in saves.items()
    )
    return Picture(figure, words)


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
    words = "; ".join(f"{run.run.name} {run.off_by}" for run in runs)
    return Picture(figure, f"device hours, predicted against published: {words}")


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
