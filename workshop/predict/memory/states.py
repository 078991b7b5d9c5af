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
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from workshop.facts.implementation import Implementation
from workshop.facts.model import ModelSpec
from workshop.predict.cuts import Array, Cuts
from workshop.predict.depth import layers_on_rank


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


def padded_vocab(model: ModelSpec, how: Implementation, tensor: Array) -> Array:
    """The vocabulary, padded to a multiple of ``vocab_multiple * tensor`` as Megatron-LM does."""
    multiple = how.vocab_multiple * tensor if how.vocab_multiple > 1 else tensor
    return -(-model.vocab_size // multiple) * multiple


class Held(NamedTuple):
    """Parameters a rank's tensor and pipeline place holds, before any sharding."""

    dense: Array
    expert: Array
    ends: Array  # of ``dense``: embedding, positions, head


def params_held(model: ModelSpec, how: Implementation, cuts: Cuts) -> Held:
    """Parameters by class for every entry of ``cuts``."""
    dense = np.zeros_like(cuts.tokens)
    expert = np.zeros_like(cuts.tokens)
    for kind, number in layers_on_rank(model, cuts).items():
        if kind == "moe" and not model.is_moe:
            continue
        count = layer_count(model, kind)
        dense = dense + number * (count.split / cuts.tensor + count.whole)
        expert = expert + number * count.expert / (cuts.expert * cuts.expert_tensor)
    extra = encoder_params(model, cuts) + mtp_params(model, how, cuts)
    expert = expert + cuts.is_last * model.num_mtp_layers * last_layer(model).expert / (
        cuts.expert * cuts.expert_tensor
    )
    ends = end_params(model, how, cuts)
    return Held(dense + extra + ends, expert, ends)


def last_layer(model: ModelSpec) -> LayerCount:
    """Counts of the model's last layer, which multi-token prediction repeats."""
    return layer_count(model, model.layer_kinds()[-1])


def mtp_params(model: ModelSpec, how: Implementation, cuts: Cuts) -> Array:
    """Dense parameters of multi-token prediction: on the last stage, with a copy of the embedding."""
    if not model.num_mtp_layers:
        return np.zeros_like(cuts.tokens)
    h, layer = model.hidden_size, last_layer(model)
    each = (layer.split + 2 * h * h) / cuts.tensor + layer.whole + 3 * model.norm_params
    embedding = np.where(cuts.pipeline > 1, padded_vocab(model, how, cuts.tensor) * h / cuts.tensor, 0)
    return cuts.is_last * (model.num_mtp_layers * each + embedding)


def encoder_params(model: ModelSpec, cuts: Cuts) -> Array:
    """An encoder's layers and the decoder's cross attention (both on the only stage)."""
    if not model.num_encoder_layers:
        return np.zeros_like(cuts.tokens)
    layer = layer_count(model, "dense")
    split = sum(linear.params for linear in model.attention_linears() if linear.split == "column")
    out = model.attention_linears()[-1]
    cross = (split + out.weights) / cuts.tensor + (out.outputs if out.bias else 0) + model.norm_params
    encoder = model.num_encoder_layers * (layer.split / cuts.tensor + layer.whole)
    return encoder + model.num_layers * cross + (model.norm_params if model.final_norm else 0)


def end_params(model: ModelSpec, how: Implementation, cuts: Cuts) -> Array:
    """Parameters of the embedding (first stage) and of the final norm and head (last stage)."""
    h = model.hidden_size
    matrix = padded_vocab(model, how, cuts.tensor) * h / cuts.tensor
    positions = model.max_positions * h if model.positions == "learned" else 0
    first = (
        matrix + positions + model.num_token_types * h + (model.norm_params if model.embedding_norm else 0)
    )
    own_head = (cuts.pipeline > 1) | (not model.tied_embeddings)
    head = (model.norm_params if model.final_norm else 0) + np.where(own_head, matrix, 0)
    head = head + (model.head_params() - (0 if model.tied_embeddings else model.vocab_size * h))
    return np.where(cuts.is_first, first, 0) + np.where(cuts.is_last, head, 0)


def divided(held: Held, cuts: Cuts, from_stage: int) -> Array:
    """Parameters a rank keeps of something that ZeRO divides from stage ``from_stage`` on."""
    sharded = cuts.zero >= from_stage
    return held.dense / np.where(sharded, cuts.state_shards, 1) + held.expert / np.where(
        sharded, cuts.expert_shards, 1
    )
