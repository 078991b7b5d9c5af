"""Many layouts at once: the numbers of a layout, each as an array.

A search looks at millions of layouts.  Python objects are too slow for that, so the predictors work on
``Cuts``: one array per number, all of one length (or broadcastable), and every formula is one numpy
expression for all of them.  A single run is a ``Cuts`` with one entry per pipeline stage.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workshop.facts.run import Run
from workshop.facts.stages import chunks

Array = NDArray[Any]


@dataclass(frozen=True)
class Cuts:
    """Sizes of each axis and the batch, as integer arrays; ``stage`` is the pipeline stage asked about."""

    tensor: Array
    sequence_parallel: Array
    pipeline: Array
    virtual: Array
    group: Array  # micro-batches that pass a chunk before the next chunk's turn; 0: as ``pipeline``
    context: Array
    expert: Array
    expert_tensor: Array
    shard: Array
    replicate: Array
    zero: Array
    micro_batch: Array
    seq_len: Array
    accumulation: Array
    stage: Array
    first_layers: Array  # layers of the first chunk; -1: as the others
    last_layers: Array

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of every prediction."""
        return np.broadcast(*(getattr(self, f.name) for f in fields(self))).shape

    @cached_property
    def tokens(self) -> Array:
        """Tokens of one micro-batch on one rank."""
        return self.micro_batch * self.seq_len / self.context

    @cached_property
    def state_shards(self) -> Array:
        """Ranks that divide state between them: the shard ranks, and the context ranks, which hold the same
        weights.
        """
        return self.shard * self.context

    @cached_property
    def expert_shards(self) -> Array:
        """Ranks that divide the state of the same experts between them."""
        ranks = self.tensor * self.context * self.shard
        return np.maximum(1, ranks // (self.expert * self.expert_tensor))

    @cached_property
    def is_first(self) -> Array:
        """Whether the stage holds the embedding."""
        return self.stage == 0

    @cached_property
    def is_last(self) -> Array:
        """Whether the stage holds the output head and the loss."""
        return self.stage == self.pipeline - 1


def cuts(stage: Any = 0, **sizes: Any) -> Cuts:
    """``Cuts`` from numbers or arrays; what is not given is 1 (``zero`` and ``group``: 0, uneven layers:
    -1).
    """
    usual = dict.fromkeys(
        (
            "tensor",
            "pipeline",
            "virtual",
            "context",
            "expert",
            "shard",
            "replicate",
            "micro_batch",
            "seq_len",
            "accumulation",
        ),
        1,
    )
    usual |= dict.fromkeys(("zero", "group", "sequence_parallel", "expert_tensor"), 0)
    usual |= {"first_layers": -1, "last_layers": -1}
    values = {name: np.asarray(value) for name, value in {**usual, **sizes, "stage": stage}.items()}
    values["expert_tensor"] = np.where(
        values["expert_tensor"] == 0, values["tensor"], values["expert_tensor"]
    )
    return Cuts(**values)


def cuts_of(run: Run, group: int = 0) -> Cuts:
    """One entry per pipeline stage of a run."""
    layout = run.layout
    ends = chunks(run.model.num_layers, layout)
    uneven = bool(layout.first_stage_layers or layout.last_stage_layers or layout.embedding_in_stages)
    return cuts(
        np.arange(layout.pipeline),
        tensor=layout.tensor,
        sequence_parallel=layout.sequence_parallel,
        pipeline=layout.pipeline,
        virtual=layout.virtual_stages,
        group=group,
        context=layout.context,
        expert=layout.expert,
        expert_tensor=layout.expert_tensor,
        shard=layout.shard,
        replicate=layout.replicate,
        zero=layout.zero,
        micro_batch=run.micro_batch,
        seq_len=run.seq_len,
        accumulation=run.accumulation,
        first_layers=ends[0] if uneven else -1,
        last_layers=ends[-1] if uneven else -1,
    )
