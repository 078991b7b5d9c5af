"""Many layouts at once: the numbers of a layout and of its batch, each as a column.

A search looks at millions of layouts. Python objects are too slow for that, so memory, time and traffic work
on `Layouts`: a numpy array for each number, all of one length, and every formula is one expression for all
of them. A run is one entry (`of_runs`), or one for each of its pipeline stages (`of_stages`).

How many layers a rank holds follows from these columns (`layers_on_rank`): the array twin of
`workshop.facts.stages`, which is the plain version; the tests hold one against the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workshop.facts.layout import CONTEXT_METHODS, RECOMPUTE, SCHEDULES
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.facts.stages import chunks

Array = NDArray[Any]
USUAL = {
    "zero": 0,
    "sequence_parallel": 0,
    "recompute": 0,
    "schedule": SCHEDULES.index("1f1b"),
    "context_method": CONTEXT_METHODS.index("ring"),
    "first_layers": -1,
    "last_layers": -1,
    "stage": 0,
    "group": 0,
}
"""What a column is that nobody gives; `expert_tensor` is as `tensor`, and all others are 1."""

AXES = (
    "replicate",
    "shard",
    "zero",
    "tensor",
    "sequence_parallel",
    "pipeline",
    "virtual_stages",
    "context",
    "expert",
    "expert_tensor",
)
"""Columns that stand in a `Layout` as they are."""


@dataclass(frozen=True)
class Layouts:
    """Layouts by column.

    `context_method`, `recompute` and `schedule` are positions in `facts.layout.CONTEXT_METHODS`, `RECOMPUTE`
    and `SCHEDULES`; `recompute_share` is the share of a stage's layers that recomputes; `accumulation`
    counts micro-batches a step; `first_layers` and `last_layers` are those of the first and the last
    chunk, -1 where they are as the others. Memory asks about the pipeline stage `stage`, and lets `group`
    micro-batches pass a chunk before the next chunk's turn (0: as many as stages).
    """

    replicate: Array
    shard: Array
    zero: Array
    tensor: Array
    sequence_parallel: Array
    pipeline: Array
    virtual_stages: Array
    context: Array
    context_method: Array
    expert: Array
    expert_tensor: Array
    recompute: Array
    recompute_share: Array
    micro_batch: Array
    seq_len: Array
    accumulation: Array
    schedule: Array
    first_layers: Array
    last_layers: Array
    stage: Array
    group: Array

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of every prediction."""
        return self.tensor.shape

    @cached_property
    def tokens(self) -> Array:
        """Tokens of one micro-batch on one rank, before sequence parallelism."""
        return self.micro_batch * self.seq_len / self.context

    @cached_property
    def data(self) -> Array:
        """Ranks that see different sequences."""
        return self.replicate * self.shard

    @cached_property
    def world_size(self) -> Array:
        """Ranks in all."""
        return self.data * self.tensor * self.pipeline * self.context

    @cached_property
    def state_shards(self) -> Array:
        """Ranks that divide state between them: the shard ranks, and the context ranks, which hold the same
        weights.
        """
        return self.shard * self.context

    @cached_property
    def expert_shards(self) -> Array:
        """Ranks that divide the state of the same experts between them."""
        return np.maximum(self.tensor * self.state_shards // (self.expert * self.expert_tensor), 1)

    @cached_property
    def expert_copies(self) -> Array:
        """Ranks that hold the same experts."""
        ranks = self.data * self.context * self.tensor
        return np.maximum(ranks // np.maximum(self.expert * self.expert_tensor, 1), 1)

    @cached_property
    def along(self) -> Array:
        """Ranks that divide the sequence between the products of a layer, where sequence parallelism does."""
        return np.where(self.sequence_parallel, self.tensor, 1)

    def context_by(self, method: str) -> Array:
        """Whether ranks share a sequence, and by this one of `facts.layout.CONTEXT_METHODS`."""
        return (self.context > 1) & (self.context_method == CONTEXT_METHODS.index(method))

    @cached_property
    def is_first(self) -> Array:
        """Whether the stage holds the embedding."""
        return self.stage == 0

    @cached_property
    def is_last(self) -> Array:
        """Whether the stage holds the output head and the loss."""
        return self.stage == self.pipeline - 1

    def take(self, index: np.ndarray | slice) -> Layouts:
        """The layouts at these positions."""
        return Layouts(*(getattr(self, name)[index] for name in COLUMNS))

    @classmethod
    def of_columns(cls, **columns: object) -> Layouts:
        """Layouts from columns (or numbers) by name; what is left out is `USUAL`."""
        if unknown := set(columns) - set(COLUMNS):
            raise ValueError(f"unknown column {sorted(unknown)} of layouts (known: {', '.join(COLUMNS)})")
        usual = {**USUAL, "expert_tensor": columns.get("tensor", 1)}
        values = [np.atleast_1d(np.asarray(columns.get(name, usual.get(name, 1)))) for name in COLUMNS]
        return cls(*np.broadcast_arrays(*values))

    @classmethod
    def of_runs(cls, runs: Sequence[Run]) -> Layouts:
        """An entry for each run."""
        rows = [_row(run) for run in runs]
        return cls(*(np.array([row[name] for row in rows]) for name in COLUMNS))

    @classmethod
    def of_stages(cls, run: Run, group: int = 0) -> Layouts:
        """An entry for each pipeline stage of a run."""
        return cls.of_columns(**{**_row(run), "stage": np.arange(run.layout.pipeline), "group": group})


COLUMNS = tuple(field.name for field in fields(Layouts))


def _row(run: Run) -> dict[str, Any]:
    """The columns of one run."""
    layout = run.layout
    uneven = bool(layout.first_stage_layers or layout.last_stage_layers or layout.embedding_in_stages)
    ends = chunks(run.model.num_layers, layout) if uneven else [-1]
    stage = -(-run.model.num_layers // layout.pipeline)
    return {
        **USUAL,
        **{name: getattr(layout, name) for name in AXES},
        **({} if run.model.is_moe else {"expert_tensor": layout.tensor}),
        "context_method": CONTEXT_METHODS.index(layout.context_method),
        "recompute": RECOMPUTE.index(layout.recompute),
        "recompute_share": min(1.0, layout.recompute_layers / stage) if layout.recompute_layers else 1.0,
        "micro_batch": run.micro_batch,
        "seq_len": run.seq_len,
        "accumulation": run.accumulation,
        "schedule": SCHEDULES.index(layout.schedule),
        "first_layers": ends[0],
        "last_layers": ends[-1],
    }


@lru_cache(maxsize=64)
def moe_below(model: ModelSpec) -> Array:
    """``moe_below(model)[n]``: mixture-of-experts layers among the first ``n``."""
    return np.concatenate([[0], np.cumsum([kind == "moe" for kind in model.layer_kinds()])])


def chunk_span(model: ModelSpec, layouts: Layouts, chunk: int) -> tuple[Array, Array]:
    """First layer and one past the last of a rank's chunk number ``chunk`` (empty where there is no such
    chunk).
    """
    total = layouts.pipeline * layouts.virtual_stages
    index = layouts.stage + chunk * layouts.pipeline
    fixed_first, fixed_last = layouts.first_layers >= 0, (layouts.last_layers >= 0) & (total > 1)
    free = (
        model.num_layers
        - np.where(fixed_first, layouts.first_layers, 0)
        - np.where(fixed_last, layouts.last_layers, 0)
    )
    parts = np.maximum(1, total - fixed_first - fixed_last)
    size, extra = free // parts, free % parts

    def start(i: Array) -> Array:
        """Layers before chunk ``i``."""
        inner = np.clip(i - fixed_first, 0, parts)
        before = (
            np.where(fixed_first & (i > 0), layouts.first_layers, 0) + inner * size + np.minimum(inner, extra)
        )
        return np.where(i >= total, model.num_layers, before)

    present = chunk < layouts.virtual_stages
    begin = np.where(present, start(index), 0)
    return begin, np.where(present, start(index + 1), 0)


def layers_in_chunk(model: ModelSpec, layouts: Layouts, chunk: int) -> dict[str, Array]:
    """Dense and mixture-of-experts layers of a rank's chunk."""
    begin, end = chunk_span(model, layouts, chunk)
    below = moe_below(model)
    moe = below[end] - below[begin]
    return {"dense": end - begin - moe, "moe": moe}


def layers_on_rank(model: ModelSpec, layouts: Layouts) -> dict[str, Array]:
    """Dense and mixture-of-experts layers of a rank, all chunks together."""
    sums: dict[str, Array] = {}
    for chunk in range(int(np.max(layouts.virtual_stages))):
        for kind, count in layers_in_chunk(model, layouts, chunk).items():
            sums[kind] = sums.get(kind, 0) + count
    return sums
