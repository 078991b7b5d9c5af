"""The collectives of Megatron-LM, and of the libraries that grew out of it.

Per layer and micro-batch (github NVIDIA/Megatron-LM, megatron/core/tensor_parallel/layers.py and mappings.py;
Korthikanti et al., arXiv 2205.05198, section 4.2.2):

- **Tensor parallelism** all-reduces the activations twice forward and twice backward. With sequence
  parallelism each all-reduce becomes a gather and a scatter, and backward gathers the two inputs once more,
  for it had saved only its slice of them. Full recomputation repeats the forward's.
- **The ends**: embedding and head are cut along the vocabulary, so the embedding's output is reduced and the
  gradient of the head's input too; the loss sums three numbers per token over the tensor ranks.
- **Data parallelism**, once a step: gradients are reduced in buckets of 40 million parameters (or a million
  for each rank, if that is more), and with a distributed optimizer scattered, then parameters gathered.
- **Between stages** the ranks of a tensor group each send their slice and gather the pieces (arXiv
  2104.04473, section 4.1); with sequence parallelism it is a slice already.
"""

from __future__ import annotations

import math

from workshop.predict.traffic.stage import (
    Calls,
    Stage,
    context_calls,
    expert_calls,
    pipeline_calls,
    tied_calls,
)

BUCKET_PARAMS, BUCKET_PARAMS_PER_RANK = 40_000_000, 1_000_000


def megatron_calls(stage: Stage) -> list[Calls]:
    """All collectives of a rank of a stage in a step."""
    return [
        *_tensor(stage),
        *pipeline_calls(stage, stage.hidden_bytes / stage.layout.tensor),
        *tied_calls(stage),
        *context_calls(stage),
        *expert_calls(stage),
        *_data(stage),
    ]


def _tensor(stage: Stage) -> list[Calls]:
    t, m, layers = stage.layout.tensor, stage.micro_batches, stage.num_layers
    forward = layers + stage.repeated_layers  # how often a layer's forward runs
    hidden, first, last = stage.hidden_bytes, stage.is_first, stage.is_last
    loss = Calls("all_reduce", "tensor", t, 3 * m * last, 4 * stage.tokens)
    if not stage.layout.sequence_parallel:
        received = pipeline_calls(stage, 0.0)
        pieces = received[-1].times if received else 0
        return [
            Calls("all_reduce", "tensor", t, m * (2 * (forward + layers) + first + last), hidden),
            Calls("all_gather", "tensor", t, pieces, hidden),
            loss,
        ]
    norms = layers * stage.model.norms_per_layer + last * stage.model.final_norm
    return [
        Calls("all_gather", "tensor", t, m * (2 * (forward + 2 * layers) + first + 2 * last), hidden),
        Calls("reduce_scatter", "tensor", t, m * (2 * (forward + layers) + first + last), hidden),
        Calls("all_reduce", "tensor", t, 1, norms * stage.model.norm_params * stage.numbers.grads),
        loss,
    ]


def _data(stage: Stage) -> list[Calls]:
    """Reduction of gradients and gathering of parameters; fully sharded ones for every micro-batch."""
    layout, (dense, expert) = stage.layout, stage.params
    ranks = layout.data_parallel * layout.context
    copies = max(1, ranks * layout.tensor // (layout.expert * (layout.expert_tensor or layout.tensor)))
    calls: list[Calls] = []
    for axis, count, group in (("data", dense, ranks), ("expert data", expert, copies)):
        if not count:
            continue
        pieces = math.ceil(count / max(BUCKET_PARAMS, BUCKET_PARAMS_PER_RANK * group))
        back, on = count / pieces * stage.gradient_width, count / pieces * stage.weight_width
        if layout.zero == 0:
            calls.append(Calls("all_reduce", axis, group, pieces, back))
            continue
        times = stage.micro_batches if layout.zero == 3 else 1
        calls.append(Calls("reduce_scatter", axis, group, pieces * times, back))
        calls.append(Calls("all_gather", axis, group, pieces * times * (2 if layout.zero == 3 else 1), on))
    return calls
