"""Weights, gradients and optimizer state on one rank.

With ``P`` parameters a rank is responsible for and widths from the precision recipe
(``workshop.facts.precision``), the three ZeRO stages divide over ``n`` ranks (Rajbhandari et al. 2020, arXiv
1910.02054, figure 1)::

    stage 0   P * (params + grads + master + moments)
    stage 1   P * (params + grads) + P * (master + moments) / n
    stage 2   P * params           + P * (grads + master + moments) / n
    stage 3   P * (params + grads + master + moments) / n

Tensor parallelism divides matrices but repeats norms and the biases of row-parallel maps; the embedding sits
on the first stage and the head on the last, which for tied embeddings holds a copy; experts are divided over
their own groups.  The vocabulary is padded so that it divides.

FSDP2 keeps shards at stage 2 as well, and beside them what it has gathered from forward to backward
(``reshard_after_forward=False``). What is gathered when, and what the optimizer's step needs, is here too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from workshop.facts.implementation import Implementation
from workshop.facts.model import ModelSpec
from workshop.facts.precision import MOMENTS
from workshop.predict.case import TrainingConfig, is_fsdp2
from workshop.predict.layouts import Array, Layouts, layers_on_rank


class LayerCount(NamedTuple):
    """Parameters of one layer by how tensor parallelism treats them."""

    split: int
    whole: int
    expert: int


@lru_cache(maxsize=256)
def layer_count(model: ModelSpec, kind: str) -> LayerCount:
    """Split, whole and expert parameters of one layer."""
    split = whole = expert = 0
    for linear in model.linears(kind):
        bias = linear.copies * linear.outputs if linear.bias else 0
        if linear.name.startswith("expert_"):
            expert += linear.params
        elif linear.split == "none":
            whole += linear.params
        else:
            split += linear.copies * linear.weights + (bias if linear.split == "column" else 0)
            whole += bias if linear.split == "row" else 0
    norms = model.norms_per_layer * model.norm_params + model.attention_norm_params()
    return LayerCount(split, whole + norms, expert)


class Held(NamedTuple):
    """Parameters a rank's tensor and pipeline place holds, before any sharding."""

    dense: Array
    expert: Array
    ends: Array  # of ``dense``: embedding, positions, head


def params_held(model: ModelSpec, how: Implementation, layouts: Layouts) -> Held:
    """Parameters by class for every entry of ``layouts``."""
    dense = np.zeros_like(layouts.tokens)
    expert = np.zeros_like(layouts.tokens)
    for kind, number in layers_on_rank(model, layouts).items():
        if kind == "moe" and not model.is_moe:
            continue
        count = layer_count(model, kind)
        dense = dense + number * (count.split / layouts.tensor + count.whole)
        expert = expert + number * count.expert / (layouts.expert * layouts.expert_tensor)
    extra = encoder_params(model, layouts) + mtp_params(model, how, layouts)
    expert = expert + layouts.is_last * model.num_mtp_layers * last_layer(model).expert / (
        layouts.expert * layouts.expert_tensor
    )
    ends = end_params(model, how, layouts)
    return Held(dense + extra + ends, expert, ends)


def last_layer(model: ModelSpec) -> LayerCount:
    """Counts of the model's last layer, which multi-token prediction repeats."""
    return layer_count(model, model.layer_kinds()[-1])


def mtp_params(model: ModelSpec, how: Implementation, layouts: Layouts) -> Array:
    """Dense parameters of multi-token prediction: on the last stage, with a copy of the embedding."""
    if not model.num_mtp_layers:
        return np.zeros_like(layouts.tokens)
    h, layer = model.hidden_size, last_layer(model)
    each = (layer.split + 2 * h * h) / layouts.tensor + layer.whole + 3 * model.norm_params
    embedding = np.where(
        layouts.pipeline > 1, model.padded_vocab(how.vocab_multiple, layouts.tensor) * h / layouts.tensor, 0
    )
    return layouts.is_last * (model.num_mtp_layers * each + embedding)


def encoder_params(model: ModelSpec, layouts: Layouts) -> Array:
    """An encoder's layers and the decoder's cross attention (both on the only stage)."""
    if not model.num_encoder_layers:
        return np.zeros_like(layouts.tokens)
    layer = layer_count(model, "dense")
    split = sum(linear.params for linear in model.attention_linears() if linear.split == "column")
    out = model.attention_linears()[-1]
    cross = (split + out.weights) / layouts.tensor + (out.outputs if out.bias else 0) + model.norm_params
    encoder = model.num_encoder_layers * (layer.split / layouts.tensor + layer.whole)
    return encoder + model.num_layers * cross + (model.norm_params if model.final_norm else 0)


def end_params(model: ModelSpec, how: Implementation, layouts: Layouts) -> Array:
    """Parameters of the embedding (first stage) and of the final norm and head (last stage)."""
    h = model.hidden_size
    matrix = model.padded_vocab(how.vocab_multiple, layouts.tensor) * h / layouts.tensor
    positions = model.max_positions * h if model.positions == "learned" else 0
    first = (
        matrix + positions + model.num_token_types * h + (model.norm_params if model.embedding_norm else 0)
    )
    own_head = (layouts.pipeline > 1) | (not model.tied_embeddings)
    head = (model.norm_params if model.final_norm else 0) + np.where(own_head, matrix, 0)
    head = head + (model.head_params() - (0 if model.tied_embeddings else model.vocab_size * h))
    return np.where(layouts.is_first, first, 0) + np.where(layouts.is_last, head, 0)


def divided(held: Held, layouts: Layouts, from_stage: int) -> Array:
    """Parameters a rank keeps of something that ZeRO divides from stage ``from_stage`` on."""
    sharded = layouts.zero >= from_stage
    return held.dense / np.where(sharded, layouts.state_shards, 1) + held.expert / np.where(
        sharded, layouts.expert_shards, 1
    )


PREFETCHED_LAYERS = 2
"""Layers unsharded at once by FSDP: the one that computes and the one being gathered (arXiv 2304.11277,
3.3.2).
"""


def gradients_leave(config: TrainingConfig, layouts: Layouts) -> Array:
    """Whether an offloaded optimizer takes the gradients along: from ZeRO's stage 2 on.

    DeepSpeed copies each reduced one to the host and lets go of it (0.19; stage_1_and_2.py:
    ``async_inplace_copy_grad_to_fp32_buffer_from_gpu``; stage3.py: ``grad_partitions_flat_buffer``). Under
    stage 1, all whole gradients are on the device before that.
    """
    return (layouts.zero >= 2) & (config.offload == "optimizer")


def trainable(config: TrainingConfig, held: Held, layouts: Layouts) -> Held:
    """What the optimizer trains: everything, or an adapter's weights (divided as the layers are)."""
    if config.adapter is None:
        return held
    count = config.adapter.params(config.model) / layouts.pipeline / layouts.tensor
    return Held(count + 0 * held.dense, 0 * held.expert, 0 * held.ends)


def shards_weights(config: TrainingConfig, layouts: Layouts) -> Array:
    """Where a rank keeps a shard of its weights: ZeRO-3, and FSDP2 at stage 2."""
    return (layouts.zero == 3) | ((layouts.zero == 2) & is_fsdp2(config.how, config.numbers))


def sums_whole(config: TrainingConfig, layouts: Layouts) -> Array:
    """Where micro-batches sum gradients that are not sharded yet (`Implementation.reduces_once`)."""
    once = config.how.reduces_once & (layouts.pipeline > 1) & shards_weights(config, layouts)
    return once & (layouts.state_shards > 1)


def weight_bytes(config: TrainingConfig, held: Held, layouts: Layouts) -> Array:
    """Weights as they are stored on the rank.

    With an adapter, matrices of the layers are kept in ``base_bits``, and embedding, head and norms in the
    recipe's width; 4-bit matrices are unpacked to compute with them, the next while one is in use.
    """
    numbers, adapter = config.numbers, config.adapter
    if adapter is None:
        whole, shard = held.dense + held.expert, divided(held, layouts, 2)
        return np.where(shards_weights(config, layouts), shard, whole) * numbers.params
    matrices = held.dense - held.ends + held.expert
    frozen = matrices * adapter.base_bits / 8 + held.ends * numbers.params
    if adapter.base_bits < 16 and config.how.four_bit_inputs:
        frozen = (
            frozen
            + 2 * max(map_.weights for map_ in config.model.linears(config.kinds[-1])) * numbers.compute
        )
    own = trainable(config, held, layouts).dense * (adapter.weight_bytes or numbers.params)
    return frozen / np.where(shards_weights(config, layouts), layouts.state_shards, 1) + own


def states(config: TrainingConfig, held: Held, layouts: Layouts) -> dict[str, Array]:
    """Weights, gradients and optimizer state in bytes."""
    numbers, train = config.numbers, trainable(config, held, layouts)
    moment = 1.0 if config.optimizer.endswith("8bit") else numbers.moments
    optimizer = divided(train, layouts, 1) * (numbers.master + MOMENTS[config.optimizer] * moment)
    gradients = divided(train, layouts, 2) * numbers.grads
    if config.how.optimizer_in_backward:
        gradients = gradients / config.model.num_layers
    parts = {"weights": weight_bytes(config, held, layouts), "optimizer": optimizer, "gradients": gradients}
    if numbers.weight_cache and not numbers.in_autocast:
        parts["weight cache"] = cache_of(config, held, layouts)
    # What is offloaded lives on the host; what ZeRO-3 gathers is counted by :func:`unsharded`.
    gone = {"optimizer": ("optimizer",), "params": tuple(parts)}.get(config.offload, ())
    parts["gradients"] = parts["gradients"] * ~gradients_leave(config, layouts)
    return {part: size * (part not in gone) for part, size in parts.items()}


def cache_of(config: TrainingConfig, held: Held, layouts: Layouts) -> Array:
    """Casts of the layers' matrices that are kept beside them."""
    matrices = held.dense - held.ends + held.expert
    shards = np.where(shards_weights(config, layouts), layouts.state_shards, 1)
    return config.numbers.weight_cache * matrices / shards


def autocast_cache(config: TrainingConfig, held: Held, layouts: Layouts) -> dict[str, Array]:
    """Casts of weights that `torch.autocast` keeps, by the moment of the step.

    It makes each once and keeps it until its block ends, at the end of forward. From there on a cast stays
    only where a product saved it for backward: all of them where nothing is recomputed; the head's, and that
    of the layer which backward is in, where all is.
    """
    if not config.numbers.in_autocast or config.offload == "params":
        return {}
    model, tensor = config.model, layouts.tensor
    layers = cache_of(config, held, layouts)
    head = model.padded_vocab(config.how.vocab_multiple, tensor) * model.hidden_size / tensor
    head = layouts.is_last * config.numbers.weight_cache * head
    again = config.policy.name == "full" and not config.recompute_layers
    one = layers / np.maximum(1, model.num_layers / layouts.pipeline)
    return {
        "end of forward": layers + head,
        "loss": (0 if again else layers) + head,
        "backward": one if again else layers,
        "first layer": one,
    }


class Gathered(NamedTuple):
    """Bytes gathered beside the shards: weights while the last layer is in backward, and while the first is
    and after it; and gradients that wait for their reduction.
    """

    early: Array
    late: Array
    gradients: Array


def unsharded(config: TrainingConfig, held: Held, layouts: Layouts) -> Gathered:
    """What is gathered: the ends for the whole step, and two layers at a time, or all of them.

    All are there from the end of forward where nothing is resharded after it (stage 2), and to the end of
    backward where that reshards nothing (`Implementation.reduces_once`).
    """
    cut = shards_weights(config, layouts) & (layouts.state_shards > 1)
    if not np.any(cut):
        return Gathered(np.zeros(()), np.zeros(()), np.zeros(()))
    numbers, layer = config.numbers, np.zeros_like(layouts.tokens)
    for kind in config.kinds:
        count = layer_count(config.model, kind)
        size = (
            count.split / layouts.tensor
            + count.whole
            + count.expert / (layouts.expert * layouts.expert_tensor)
        )
        layer = np.maximum(layer, size)
    width = min(numbers.compute, numbers.params)
    window = cut * width * (held.ends + (PREFETCHED_LAYERS + 1) * layer)
    base = width if config.adapter is None else min(width, config.adapter.base_bits / 8)
    whole = cut * (width * held.ends + base * (held.dense - held.ends + held.expert))
    early = np.where(layouts.zero == 2, np.maximum(whole, window), window)
    once = sums_whole(config, layouts)
    late = np.where(once, np.maximum(whole, window), window)
    waiting = np.where(once, 1, PREFETCHED_LAYERS)  # summed at once, or until they are reduced
    return Gathered(early, late, cut * numbers.unsharded_grads * waiting * layer)


def summed_gradients(config: TrainingConfig, held: Held, layouts: Layouts, sharded: Array) -> Array:
    """Gradients from one micro-batch to the next: `sharded`, or whole in the width of their sum."""
    train = trainable(config, held, layouts)
    whole = (train.dense + train.expert) * config.numbers.grads * (config.offload != "params")
    return np.where(sums_whole(config, layouts), whole, sharded)


def step_bytes(config: TrainingConfig, held: Held, layouts: Layouts) -> Array:
    """Temporaries of AdamW's step, over the parameters a rank updates; SGD updates in place.

    An offloaded optimizer steps on the host.
    """
    if MOMENTS[config.optimizer] < 2 or config.offload in ("optimizer", "params"):
        return np.zeros(())
    room = config.how.step_room * config.numbers.moments / 4
    return divided(trainable(config, held, layouts), layouts, 1) * room
