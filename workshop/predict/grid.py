"""Many layouts as columns of numbers, so that a million of them are one array operation.

A `Grid` says the same as `facts.Layout` and the batch, one numpy array per field, all of one length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from workshop.facts.layout import SCHEDULES
from workshop.facts.run import Run
from workshop.facts.stages import chunks
from workshop.predict.cuts import Cuts, cuts

RECOMPUTE = ("none", "selective", "full")
USUAL = {
    "zero": 0,
    "sequence_parallel": 0,
    "recompute": 0,
    "schedule": SCHEDULES.index("1f1b"),
    "first_layers": -1,
    "last_layers": -1,
}
"""What a column is that nobody gives; all others are 1."""

LAYOUT = (
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

Numbers = Any


@dataclass(frozen=True)
class Cut:
    """How a layer is cut: arrays over layouts (or numbers)."""

    micro_batch: Numbers
    seq_len: Numbers
    tensor: Numbers = 1
    sequence_parallel: Numbers = False
    context: Numbers = 1
    expert: Numbers = 1
    expert_tensor: Numbers = 1

    @property
    def tokens(self) -> np.ndarray:
        """Tokens of one micro-batch on one rank, before sequence parallelism."""
        return np.asarray(self.micro_batch) * self.seq_len / np.asarray(self.context)


@dataclass(frozen=True)
class Grid:
    """Layouts by column. `recompute` is an index of `RECOMPUTE`, `schedule` one of `facts.layout.SCHEDULES`;
    `accumulation` counts micro-batches per step. `first_layers` and `last_layers` are those of the first and
    the last chunk, -1 where they are as the others.
    """

    replicate: np.ndarray
    shard: np.ndarray
    zero: np.ndarray
    tensor: np.ndarray
    sequence_parallel: np.ndarray
    pipeline: np.ndarray
    virtual_stages: np.ndarray
    context: np.ndarray
    expert: np.ndarray
    expert_tensor: np.ndarray
    recompute: np.ndarray
    recompute_share: np.ndarray
    micro_batch: np.ndarray
    accumulation: np.ndarray
    schedule: np.ndarray
    first_layers: np.ndarray
    last_layers: np.ndarray

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def data(self) -> np.ndarray:
        """Ranks that see different sequences."""
        return self.replicate * self.shard

    @property
    def world_size(self) -> np.ndarray:
        """Ranks in all."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def state_shards(self) -> np.ndarray:
        """Ranks that divide state between them: the shard ranks, and the context ranks, which hold the same
        weights.
        """
        return self.shard * self.context

    @property
    def expert_shards(self) -> np.ndarray:
        """Ranks that divide the state of the same experts between them."""
        return np.maximum(self.tensor * self.state_shards // (self.expert * self.expert_tensor), 1)

    @property
    def expert_copies(self) -> np.ndarray:
        """Ranks that hold the same experts."""
        ranks = self.data * self.context * self.tensor
        return np.maximum(ranks // np.maximum(self.expert * self.expert_tensor, 1), 1)

    def cut(self, seq_len: int) -> Cut:
        """How a layer is cut by every layout."""
        return Cut(
            self.micro_batch,
            seq_len,
            self.tensor,
            self.sequence_parallel,
            self.context,
            self.expert,
            self.expert_tensor,
        )

    def cuts(self, seq_len: int) -> Cuts:
        """The layouts as the memory model has them, each with its first stage."""
        names = {"tensor", "sequence_parallel", "pipeline", "context", "expert", "expert_tensor", "shard"}
        names |= {"replicate", "zero", "micro_batch", "accumulation", "first_layers", "last_layers"}
        columns = {name: getattr(self, name) for name in names}
        return cuts(seq_len=seq_len, virtual=self.virtual_stages, **columns)

    def take(self, index: np.ndarray | slice) -> Grid:
        """The layouts at these positions."""
        return Grid(*(getattr(self, f.name)[index] for f in fields(self)))

    @classmethod
    def of_columns(cls, **columns: object) -> Grid:
        """A grid from columns (or numbers) by name; what is left out is `USUAL`, or 1."""
        names = [f.name for f in fields(cls)]
        if unknown := set(columns) - set(names):
            raise ValueError(f"unknown column {sorted(unknown)} of a grid (known: {', '.join(names)})")
        values = [np.atleast_1d(np.asarray(columns.get(name, USUAL.get(name, 1)))) for name in names]
        return cls(*np.broadcast_arrays(*values))

    @classmethod
    def of_runs(cls, runs: Sequence[Run]) -> Grid:
        """A grid with a row for each run."""
        rows = [_row(run) for run in runs]
        return cls(*(np.array([row[f.name] for row in rows]) for f in fields(cls)))


def _row(run: Run) -> dict[str, Any]:
    """The columns of one run."""
    layout = run.layout
    uneven = bool(layout.first_stage_layers or layout.last_stage_layers or layout.embedding_in_stages)
    ends = chunks(run.model.num_layers, layout) if uneven else [-1]
    stage = -(-run.model.num_layers // layout.pipeline)
    return {
        **{name: getattr(layout, name) for name in LAYOUT},
        "recompute": RECOMPUTE.index(layout.recompute),
        "recompute_share": min(1.0, layout.recompute_layers / stage) if layout.recompute_layers else 1.0,
        "micro_batch": run.micro_batch,
        "accumulation": run.accumulation,
        "schedule": SCHEDULES.index(layout.schedule),
        "first_layers": ends[0],
        "last_layers": ends[-1],
    }
