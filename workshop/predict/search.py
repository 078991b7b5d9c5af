"""Every layout of a cluster, timed: a million of them in a second.

Three observations make that possible in plain numpy:

1. What a layer costs depends only on tensor, context and expert parallelism and the micro-batch: a few hundred
   combinations, however many layouts. They are computed once and looked up.
2. What remains (bubble, reductions, optimizer) is arithmetic on columns.
3. Columns of a few thousand numbers stay in the processor's cache, so the table is worked through in pieces.

`search_steps` gives what `step_arrays.predict_steps` gives, number for number; a test holds them equal.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from workshop.facts.device import ClusterSpec
from workshop.facts.model import ModelSpec
from workshop.facts.precision import Precision

from .grid import Grid
from .layer import Costs, Cut, Machine
from .rates import Rates, Software
from .step_arrays import StepArrays, combine, head_seconds, layer_passes, machine_of

PIECE = 8192


def search_seconds(
    model: ModelSpec,
    cluster: ClusterSpec,
    grid: Grid,
    seq_len: int,
    precision: Precision,
    rates: Rates,
    stack: Software,
) -> np.ndarray:
    """Seconds per step of every layout of `grid`: the fast version of `predict_steps(...).seconds`."""
    machine = machine_of(cluster, precision, rates, stack)
    first, which = _combinations(grid)
    few = grid.take(first)
    cut = Cut(few.micro_batch, seq_len, few.tensor, few.sequence_parallel, few.context, few.expert)
    forward, backward = layer_passes(model, cut, machine, stack)
    head = head_seconds(model, cut, machine, stack)
    seconds = np.empty(len(grid))
    for start in range(0, len(grid), PIECE):
        piece = slice(start, start + PIECE)
        part, of = _slice(grid, piece), which[piece]
        arrays = combine(
            model,
            part,
            _take(forward, of),
            _take(backward, of),
            head[of],
            machine,
            precision,
            stack,
            Cut(part.micro_batch, seq_len, part.tensor, part.sequence_parallel, part.context, part.expert),
        )
        seconds[piece] = arrays.seconds
    return seconds


def search_steps(
    model: ModelSpec,
    cluster: ClusterSpec,
    grid: Grid,
    seq_len: int,
    precision: Precision,
    rates: Rates,
    stack: Software,
) -> StepArrays:
    """As `search_seconds`, with the causes, for a grid that is small enough to keep them."""
    machine: Machine = machine_of(cluster, precision, rates, stack)
    first, which = _combinations(grid)
    few = grid.take(first)
    cut = Cut(few.micro_batch, seq_len, few.tensor, few.sequence_parallel, few.context, few.expert)
    forward, backward = layer_passes(model, cut, machine, stack)
    head = head_seconds(model, cut, machine, stack)
    whole = Cut(grid.micro_batch, seq_len, grid.tensor, grid.sequence_parallel, grid.context, grid.expert)
    return combine(
        model,
        grid,
        _take(forward, which),
        _take(backward, which),
        head[which],
        machine,
        precision,
        stack,
        whole,
    )


def _combinations(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Rows in which what a layer costs differs, and for every row which of them it is."""
    key = np.zeros(len(grid), np.int64)
    for column in (grid.tensor, grid.sequence_parallel, grid.context, grid.expert, grid.micro_batch):
        key = key * (int(column.max()) + 1) + column.astype(np.int64)
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return first, which


def _slice(grid: Grid, piece: slice) -> Grid:
    return Grid(*(getattr(grid, f.name)[piece] for f in fields(Grid)))


def _take(costs: Costs, which: np.ndarray) -> Costs:
    return Costs(*(getattr(costs, f.name)[which] for f in fields(Costs)))
