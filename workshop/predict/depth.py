"""How many layers a pipeline rank holds, by kind, for many layouts at once.

The array twin of :mod:`workshop.facts.stages`, which is the plain version: the tests hold one against the
other.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from workshop.facts.model import ModelSpec
from workshop.predict.cuts import Array, Cuts


@lru_cache(maxsize=64)
def moe_below(model: ModelSpec) -> Array:
    """``moe_below(model)[n]``: mixture-of-experts layers among the first ``n``."""
    return np.concatenate([[0], np.cumsum([kind == "moe" for kind in model.layer_kinds()])])


def chunk_span(model: ModelSpec, cuts: Cuts, chunk: int) -> tuple[Array, Array]:
    """First layer and one past the last of a rank's chunk number ``chunk`` (empty where there is no such
    chunk).
    """
    total = cuts.pipeline * cuts.virtual
    index = cuts.stage + chunk * cuts.pipeline
    fixed_first, fixed_last = cuts.first_layers >= 0, (cuts.last_layers >= 0) & (total > 1)
    free = (
        model.num_layers
        - np.where(fixed_first, cuts.first_layers, 0)
        - np.where(fixed_last, cuts.last_layers, 0)
    )
    parts = np.maximum(1, total - fixed_first - fixed_last)
    size, extra = free // parts, free % parts

    def start(i: Array) -> Array:
        """Layers before chunk ``i``."""
        inner = np.clip(i - fixed_first, 0, parts)
        before = (
            np.where(fixed_first & (i > 0), cuts.first_layers, 0) + inner * size + np.minimum(inner, extra)
        )
        return np.where(i >= total, model.num_layers, before)

    present = chunk < cuts.virtual
    begin = np.where(present, start(index), 0)
    return begin, np.where(present, start(index + 1), 0)


def layers_in_chunk(model: ModelSpec, cuts: Cuts, chunk: int) -> dict[str, Array]:
    """Dense and mixture-of-experts layers of a rank's chunk."""
    begin, end = chunk_span(model, cuts, chunk)
    below = moe_below(model)
    moe = below[end] - below[begin]
    return {"dense": end - begin - moe, "moe": moe}


def layers_on_rank(model: ModelSpec, cuts: Cuts) -> dict[str, Array]:
    """Dense and mixture-of-experts layers of a rank, all chunks together."""
    sums: dict[str, Array] = {}
    for chunk in range(int(np.max(cuts.virtual))):
        for kind, count in layers_in_chunk(model, cuts, chunk).items():
            sums[kind] = sums.get(kind, 0) + count
    return sums
