"""Every layout of a cluster, timed: a million of them in a second.

Three observations make that possible in plain numpy:

1. What a layer costs depends only on tensor, context and expert parallelism and the micro-batch: a few
   hundred combinations, however many layouts. They are computed once and looked up.
2. What remains (bubble, reductions, optimizer) is arithmetic on columns.
3. Columns of a few thousand numbers stay in the processor's cache, so the table is worked through in pieces.

`search_steps` gives what `step.predict_steps` gives, number for number; a test holds them equal.
"""

from __future__ import annotations

import numpy as np

from workshop.predict.case import Setting
from workshop.predict.layouts import Layouts
from workshop.predict.time.step import Passes, StepArrays, combine, layer_and_head, selects

PIECE = 8192


def search_seconds(setting: Setting, layouts: Layouts) -> np.ndarray:
    """Seconds per step of every layout of `layouts`: the fast version of `predict_steps(...).seconds`."""
    passes, which = _looked_up(setting, layouts)
    seconds = np.empty(len(layouts))
    for start in range(0, len(layouts), PIECE):
        piece = slice(start, start + PIECE)
        seconds[piece] = combine(setting, layouts.take(piece), passes.take(which[piece])).seconds
    return seconds


def search_steps(setting: Setting, layouts: Layouts) -> StepArrays:
    """As `search_seconds`, with the causes, for layouts few enough to keep them."""
    passes, which = _looked_up(setting, layouts)
    return combine(setting, layouts, passes.take(which))


def _looked_up(setting: Setting, layouts: Layouts) -> tuple[Passes, np.ndarray]:
    """The passes of all combinations that differ, and for every layout which of them is its own."""
    key = np.zeros(len(layouts), np.int64)
    alike = (
        layouts.tensor,
        layouts.sequence_parallel,
        layouts.context,
        layouts.context_method,
        layouts.expert,
        layouts.expert_tensor,
        layouts.micro_batch,
        layouts.seq_len,
    )
    for column in alike:
        key = key * (int(column.max()) + 1) + column.astype(np.int64)
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return layer_and_head(setting, layouts.take(first), selects(layouts)), which
