"""Every layout of a cluster, timed: a million of them in a second.

Three observations make that possible in plain numpy:

1. What a layer costs depends only on tensor, context and expert parallelism and the micro-batch: a few
   hundred combinations, however many layouts. They are computed once and looked up.
2. What remains (bubble, reductions, optimizer) is arithmetic on columns.
3. Columns of a few thousand numbers stay in the processor's cache, so the table is worked through in pieces.

`search_steps` gives what `step_arrays.predict_steps` gives, number for number; a test holds them equal.
"""

from __future__ import annotations

import numpy as np

from workshop.predict.case import Setting
from workshop.predict.grid import Grid
from workshop.predict.time.step_arrays import Passes, StepArrays, combine, layer_and_head

PIECE = 8192


def search_seconds(setting: Setting, grid: Grid) -> np.ndarray:
    """Seconds per step of every layout of `grid`: the fast version of `predict_steps(...).seconds`."""
    passes, which = _looked_up(setting, grid)
    seconds = np.empty(len(grid))
    for start in range(0, len(grid), PIECE):
        piece = slice(start, start + PIECE)
        seconds[piece] = combine(setting, grid.take(piece), passes.take(which[piece])).seconds
    return seconds


def search_steps(setting: Setting, grid: Grid) -> StepArrays:
    """As `search_seconds`, with the causes, for a grid that is small enough to keep them."""
    passes, which = _looked_up(setting, grid)
    return combine(setting, grid, passes.take(which))


def _looked_up(setting: Setting, grid: Grid) -> tuple[Passes, np.ndarray]:
    """The passes of all combinations that differ, and for every layout which of them is its own."""
    key = np.zeros(len(grid), np.int64)
    cut = (
        grid.tensor,
        grid.sequence_parallel,
        grid.context,
        grid.expert,
        grid.expert_tensor,
        grid.micro_batch,
    )
    for column in cut:
        key = key * (int(column.max()) + 1) + column.astype(np.int64)
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return layer_and_head(setting, grid.take(first).cut(setting.seq_len)), which
