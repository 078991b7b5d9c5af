"""Many layouts as columns of numbers, so that a million of them are one array operation.

A `Grid` says the same as `facts.Layout` and the batch, one numpy array per field, all of one length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from workshop.facts.run import Run
from workshop.predict.pipeline_closed import CHUNKED

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Grid:
    """Layouts by column. `recompute` is an index of `RECOMPUTE`; `accumulation` counts micro-batches per
    step.
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
    recompute: np.ndarray
    recompute_share: np.ndarray
    micro_batch: np.ndarray
    accumulation: np.ndarray

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

    def take(self, index: np.ndarray) -> Grid:
        """The layouts at these positions."""
        return Grid(*(getattr(self, f.name)[index] for f in fields(self)))

    @classmethod
    def of_columns(cls, **columns: object) -> Grid:
        """A grid from columns (or numbers) by name; what is left out is 1, or nothing."""
        ones = {
            "replicate",
            "shard",
            "tensor",
            "pipeline",
            "virtual_stages",
            "context",
            "expert",
            "micro_batch",
            "accumulation",
            "recompute_share",
        }
        names = [f.name for f in fields(cls)]
        if unknown := set(columns) - set(names):
            raise ValueError(f"unknown column {sorted(unknown)} of a grid (known: {', '.join(names)})")
        values = [np.atleast_1d(np.asarray(columns.get(n, 1 if n in ones else 0))) for n in names]
        return cls(*np.broadcast_arrays(*values))

    @classmethod
    def of_runs(cls, runs: Sequence[Run]) -> Grid:
        """A grid with a row for each run."""
        rows = []
        for run in runs:
            x = run.layout
            stage = max(1, run.model.num_layers // x.pipeline)
            share = min(1.0, x.recompute_layers / stage) if x.recompute_layers else 1.0
            virtual = x.virtual_stages if x.schedule in CHUNKED else 1
            rows.append(
                (
                    x.replicate,
                    x.shard,
                    x.zero,
                    x.tensor,
                    x.sequence_parallel,
                    x.pipeline,
                    virtual,
                    x.context,
                    x.expert,
                    RECOMPUTE.index(x.recompute),
                    share,
                    run.micro_batch,
                    run.accumulation,
                )
            )
        columns = list(zip(*rows, strict=True))
        return cls(*(np.array(column) for column in columns))
