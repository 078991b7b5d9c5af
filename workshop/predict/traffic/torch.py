"""The collectives of PyTorch's own modules: DDP, FSDP2, DTensor's tensor parallelism, pipelining.

Each was read off a rehearsal of the same code, and a test holds the two equal.

- **DDP** all-reduces gradients in buckets, the first of 1 MiB, the others of 25 MiB, filled in the order in
  which backward finishes them (`torch/csrc/distributed/c10d/reducer.cpp`). `ZeroRedundancyOptimizer` then
  broadcasts every parameter from the rank that updated it.
- **FSDP2** treats every layer as one unit, and embedding, head and final norm as another. Each micro-batch
  gathers a unit forward and, unless it was kept, backward, and reduce-scatters its gradients. The last unit
  is kept from forward to backward, which begins with it. Parameters are cut along their first dimension,
  which is padded until it divides. Under a pipeline of torch.distributed.pipelining it reduces once a step,
  and what is not resharded after forward is gathered once too (`Implementation.reduces_once`). What is
  resharded is gathered once for each of m micro-batches and once more: a backward leaves it for the next
  forward, under 1F1B and GPipe alike.
- **Tensor parallelism by DTensor**: a row-parallel map all-reduces its output; each column-parallel map
  reduces the gradient of its own input, so five of them in a gated layer (Megatron-LM sums first, and has
  two). The embedding and the head are cut by words: an all_reduce each, and the logits are gathered. With
  sequence parallelism the inputs are gathered once for the maps that share them, and the gradients of norms
  stay unsummed until the optimizer reads them: AdamW reads a gradient three times and so all-reduces it three
  times; fused, it reads it once. FSDP2 sums them after every micro-batch.
- **A tied embedding** under a pipeline is on the first and on the last stage, which sum its gradients.
- **Recomputation** runs forward's collectives again, all but the last of a layer: nobody saved what it made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from workshop.facts.model import ModelSpec
from workshop.facts.precision import MOMENTS
from workshop.predict.traffic.stage import (
    Calls,
    Stage,
    context_calls,
    expert_calls,
    pipeline_calls,
    tied_calls,
)

MIB = 2**20
FIRST_BUCKET, BUCKET = MIB, 25 * MIB
RING_GRADIENT_BYTES = 4.0
"""Gradients of keys and values add up in fp32 as they go round (`workshop.parallel.context`)."""


def torch_calls(stage: Stage) -> list[Calls]:
    """All collectives of a rank of a stage in a step."""
    return [
        *_tensor(stage),
        *pipeline_calls(stage, stage.hidden_bytes / _along(stage)),
        *context_calls(stage, RING_GRADIENT_BYTES),
        *expert_calls(stage),
        *(_fsdp(stage) if stage.layout.zero >= 2 else _ddp(stage)),
        *tied_calls(stage, stage.layout.shard * stage.layout.context if stage.layout.zero >= 2 else 1),
    ]


def _along(stage: Stage) -> int:
    return stage.layout.tensor if stage.layout.sequence_parallel else 1


def _layer_shapes(model: ModelSpec, kind: str, tensor: int) -> Iterator[tuple[int, int]]:
    """(rows, elements) of every parameter of a layer on a tensor rank, as backward finishes them."""
    norm = model.norm_params // (2 if model.norm == "layernorm" else 1)
    for linear in reversed(model.linears(kind)):
        rows = linear.outputs // (tensor if linear.split == "column" else 1)
        weights = linear.weights // (1 if linear.split == "none" else tensor)
        yield (linear.copies, linear.copies * weights) if linear.copies > 1 else (rows, weights)
        if linear.bias:
            yield linear.copies * rows, linear.copies * rows
    for _ in range(model.norms_per_layer):
        yield from [(norm, norm)] * (model.norm_params // norm)
    if extra := model.attention_norm_params():
        yield extra, extra


def _end_shapes(stage: Stage) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Parameters of the head and of the embedding, where the stage has them."""
    model, h = stage.model, stage.model.hidden_size
    words = math.ceil(model.vocab_size / stage.layout.tensor)
    matrix = (words, words * h)
    norm = model.norm_params // (2 if model.norm == "layernorm" else 1)
    own_head = stage.layout.pipeline > 1 or not model.tied_embeddings
    head = ([matrix] if own_head else []) + [(norm, norm)] * (model.norm_params // norm * model.final_norm)
    positions = [(model.max_positions, model.max_positions * h)] if model.positions == "learned" else []
    return (head if stage.is_last else []), ([*positions, matrix] if stage.is_first else [])


def _shapes(stage: Stage) -> list[tuple[int, int]]:
    head, embedding = _end_shapes(stage)
    layers = [
        shape
        for kind, count in stage.layers.items()
        for _ in range(count)
        for shape in _layer_shapes(stage.model, kind, stage.layout.tensor)
    ]
    return [*head, *layers, *embedding]


def buckets(sizes: list[float]) -> list[float]:
    """Bytes of DDP's buckets: parameters are added until a bucket has reached its limit."""
    filled: list[float] = []
    now, limit = 0.0, FIRST_BUCKET
    for size in sizes:
        now += size
        if now >= limit:
            filled.append(now)
            now, limit = 0.0, BUCKET
    return filled + ([now] if now else [])


def _ddp(stage: Stage) -> list[Calls]:
    shapes, layout = _shapes(stage), stage.layout
    data = layout.data_parallel * layout.context
    width = stage.numbers.grads
    calls = [Calls("all_reduce", "data", data, 1, size) for size in buckets([n * width for _, n in shapes])]
    if layout.zero == 1:
        calls += [Calls("broadcast", "data", data, 1, n * stage.numbers.params) for _, n in shapes]
    return calls


def _fsdp(stage: Stage) -> list[Calls]:
    layout, model = stage.layout, stage.model
    n, m = layout.shard * layout.context, stage.micro_batches
    head, embedding = _end_shapes(stage)
    once = stage.run.implementation.reduces_once and layout.pipeline > 1
    reduced = 1 if once else m
    again = reduced if layout.zero == 2 else m + 1 if once else 2 * m
    units = [
        (again, list(_layer_shapes(model, kind, layout.tensor)))
        for kind, c in stage.layers.items()
        for _ in range(c)
    ]
    if ends := [*head, *embedding]:
        units.append((1 if once else m, ends))
    calls: list[Calls] = []
    for gathers, shapes in units:
        whole = sum(math.ceil(rows / n) * n * (elements / rows) for rows, elements in shapes)
        calls += [
            Calls("all_gather", "shard", n, gathers, whole * stage.weight_width),
            Calls("reduce_scatter", "shard", n, reduced, whole * stage.numbers.grads),
            Calls("all_reduce", "replicate", layout.replicate, reduced, whole / n * stage.numbers.grads),
        ]
    return calls


def _tensor(stage: Stage) -> list[Calls]:
    t, m = stage.layout.tensor, stage.micro_batches
    if t == 1:
        return []
    again = stage.repeated_layers
    layers, hidden = stage.num_layers, stage.hidden_bytes
    ends = stage.is_first + stage.is_last
    logits = stage.tokens * stage.model.vocab_size * stage.numbers.compute
    if not stage.layout.sequence_parallel:
        columns = sum(
            number * sum(x.split == "column" for x in stage.model.linears(kind))
            for kind, number in stage.layers.items()
        )
        times = m * (2 * layers + again + columns + ends)
        return [
            Calls("all_reduce", "tensor", t, times, hidden),
            Calls("all_gather", "tensor", t, m * stage.is_last, logits),
        ]
    norms = layers * stage.model.norms_per_layer + stage.is_last * stage.model.final_norm
    is_fused = not stage.run.implementation.step_room
    reads = m if stage.layout.zero >= 2 else 3 if MOMENTS[stage.run.optimizer] and not is_fused else 1
    pieces = 2 if stage.model.norm == "layernorm" else 1
    width = stage.weight_width if stage.layout.zero >= 2 else stage.numbers.grads  # FSDP2 widens them later
    weight = stage.model.norm_params / pieces * width
    return [
        Calls("reduce_scatter", "tensor", t, m * (4 * layers + again + ends), hidden),
        Calls("all_gather", "tensor", t, m * (4 * layers + 2 * again + ends), hidden),
        Calls("all_gather", "tensor", t, m * stage.is_last, logits),
        Calls("all_reduce", "tensor", t, reads * pieces * norms, weight),
    ]
