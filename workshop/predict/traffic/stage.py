"""One pipeline stage as its collectives see it: what is on it, and what all libraries do alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.precision import Precision, precision
from workshop.facts.run import Run
from workshop.predict.case import stack_for


class Calls(NamedTuple):
    """`times` collectives of `num_bytes` (the full side of each) over `ranks` ranks of an axis."""

    name: str
    axis: str
    ranks: int
    times: float
    num_bytes: float


@dataclass(frozen=True)
class Stage:
    """A stage of a run's pipeline; `layers`: how many of each kind are on it; `params`: how many parameters
    one of its ranks holds before any sharding, dense ones and experts'.
    """

    run: Run
    index: int
    layers: dict[str, int]
    params: tuple[float, float]

    @property
    def model(self) -> ModelSpec:
        """The model."""
        return self.run.model

    @property
    def layout(self) -> Layout:
        """The layout."""
        return self.run.layout

    @cached_property
    def numbers(self) -> Precision:
        """Widths in bytes."""
        return precision(self.layout.precision)

    @property
    def is_first(self) -> bool:
        """Whether the embedding is here."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether the head is here."""
        return self.index == self.layout.pipeline - 1

    @property
    def num_layers(self) -> int:
        """Layers of any kind."""
        return sum(self.layers.values())

    @property
    def repeated_layers(self) -> int:
        """Layers whose forward is run again under full recomputation."""
        if self.layout.recompute != "full":
            return 0
        return min(self.num_layers, self.layout.recompute_layers or self.num_layers)

    @property
    def micro_batches(self) -> int:
        """Micro-batches in a step."""
        return self.run.accumulation

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on a rank, before sequence parallelism."""
        return self.run.micro_batch * self.run.seq_len / self.layout.context

    @property
    def hidden_bytes(self) -> float:
        """Activations between layers, of one micro-batch, whole."""
        return self.tokens * self.model.hidden_size * self.numbers.compute

    @property
    def gradient_width(self) -> float:
        """Bytes of a gradient on the wire: as it is kept, or narrower where the stack casts it."""
        return min(self.numbers.grads, stack_for(self.run).gradient_bytes)

    @property
    def weight_width(self) -> float:
        """Bytes of a gathered weight."""
        return min(self.numbers.compute, self.numbers.params)


def pipeline_calls(stage: Stage, num_bytes: float) -> list[Calls]:
    """Activations passed on and gradients back, `num_bytes` each, once for every chunk of the rank."""
    p, v, m = stage.layout.pipeline, stage.layout.virtual_stages, stage.micro_batches
    if p == 1:
        return []
    on, back = (v - 1 if last else v for last in (stage.is_last, stage.is_first))
    # What it sends on it gets gradients for, and the other way round.
    return [Calls(name, "pipeline", p, m * (on + back), num_bytes) for name in ("send", "recv")]


def context_calls(stage: Stage, gradient_width: float = 0.0) -> list[Calls]:
    """What the context ranks of every layer say to each other, forward and backward.

    A ring hands keys and values on, forward and again backward, and their gradients one hop behind. Gathered,
    they are gathered twice, and their gradients reduced. Ulysses trades queries, keys, values and the result.

    gradient_width: bytes in which gradients of keys and values travel a ring; 0: as they are computed.
    """
    c, model, numbers = stage.layout.context, stage.model, stage.numbers
    width = (model.kv_width + model.v_width) * numbers.compute / stage.layout.tensor
    times, keys = stage.num_layers * stage.micro_batches, stage.tokens * width
    both = 2 * times + stage.repeated_layers * stage.micro_batches  # forward, again if recomputed, backward
    if stage.layout.context_method == "all_gather":
        whole = [Calls("all_gather", "context", c, both, keys * c)]
        return [*whole, Calls("reduce_scatter", "context", c, times, keys * c)]
    if stage.layout.context_method == "ulysses":
        kv_heads = model.num_heads if model.is_mla else model.num_kv_heads
        copies = max(1.0, c * stage.layout.tensor / kv_heads)  # a key head that several ranks need
        heads = (model.q_width + model.attention_width) * numbers.compute / stage.layout.tensor
        each = (stage.tokens * heads + keys * copies) / 4
        return [Calls("all_to_all", "context", c, 4 * both, each)]
    gradients = keys * (gradient_width or numbers.compute) / numbers.compute
    return [
        Calls(name, "context", c, (c - 1) * count, size)
        for name in ("send", "recv")
        for count, size in ((both, keys), (times, gradients))
    ]


def expert_calls(stage: Stage) -> list[Calls]:
    """Tokens to their experts and back, forward and backward."""
    moe, layout = stage.layers.get("moe", 0), stage.layout
    if not moe:
        return []
    sent = stage.hidden_bytes * stage.model.experts_per_token / layout.tensor
    passes = 4 + 2 * stage.repeated_layers / stage.num_layers
    return [Calls("all_to_all", "expert", layout.expert, passes * moe * stage.micro_batches, sent)]


def tied_calls(stage: Stage, shards: int = 1) -> list[Calls]:
    """A tied embedding is on the first and on the last stage; they sum its gradients, of which a rank has
    one of ``shards`` parts.
    """
    if not stage.model.tied_embeddings or stage.layout.pipeline == 1 or not (stage.is_first or stage.is_last):
        return []
    matrix = stage.model.vocab_size * stage.model.hidden_size / stage.layout.tensor / shards
    return [Calls("all_reduce", "embedding", 2, 1, matrix * stage.numbers.grads)]
