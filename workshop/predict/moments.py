"""The moments of a step at which memory may peak, each as bytes by part."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from workshop.facts.implementation import Implementation
from workshop.facts.model import ModelSpec
from workshop.facts.precision import MOMENTS, Precision
from workshop.facts.run import Adapter
from workshop.predict.activations import Policy, chunks_alive, kept, per_token, total
from workshop.predict.cuts import Array, Cuts
from workshop.predict.depth import layers_in_chunk
from workshop.predict.loss import ends_saved, head_gradients, loss_bytes
from workshop.predict.saved import cross_attention_saved
from workshop.predict.states import Held, divided, layer_count, params_held

PREFETCHED_LAYERS = 2
"""Layers unsharded at once by FSDP: the one that computes and the one being gathered (arXiv 2304.11277,
3.3.2)."""


@dataclass(frozen=True)
class Recipe:
    """The choices of a run that are names: what :class:`Cuts` leaves out."""

    model: ModelSpec
    how: Implementation
    numbers: Precision
    policy: Policy = Policy()
    schedule: str = "1f1b"
    optimizer: str = "adamw"
    adapter: Adapter | None = None
    recompute_every: int = 1
    recompute_layers: int = 0
    offload: str = "none"
    target_len: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of layers the model has."""
        return tuple(dict.fromkeys(self.model.layer_kinds()))


def moments(recipe: Recipe, cuts: Cuts, workspace: int = 0) -> dict[str, dict[str, Array]]:
    """Bytes by part at each moment of the step; see :mod:`workshop.predict.memory`."""
    state = states(recipe, cuts)
    grads = state.pop("gradients")
    kept_grads = grads if recipe.how.buffers == "contiguous" else 0 * grads
    early = np.where(cuts.accumulation > 1, grads, kept_grads)
    base = {
        **state,
        "workspace": workspace + 0 * grads,
        "buckets": np.where(cuts.state_shards * cuts.replicate > 1, recipe.how.bucket_bytes, 0),
    }
    saved = saved_bytes(recipe, cuts) * (0 if recipe.offload == "activations" else 1)
    window, gathered_grads = unsharded(recipe, cuts)
    read = cuts if not recipe.target_len else replace(cuts, seq_len=recipe.target_len + 0 * cuts.seq_len)
    ends = ends_saved(recipe.model, recipe.how, recipe.numbers, read, along(cuts))
    logits = loss_bytes(recipe.model, recipe.how, recipe.numbers, read)
    boundary = boundary_bytes(recipe, cuts)
    head = head_gradients(recipe.model, recipe.how, recipe.numbers, cuts) * (recipe.adapter is None)
    full = {**base, "activations": saved + ends, "stage boundaries": boundary, "unsharded weights": window}
    return {
        "loss": {**full, "gradients": early, "logits and loss": logits, "unsharded gradients": head},
        "backward": {
            **full,
            "gradients": early,
            "working": working_bytes(recipe, cuts),
            "unsharded gradients": gathered_grads,
        },
        "end of backward": {
            **base,
            "gradients": grads,
            "stage boundaries": boundary,
            "unsharded weights": window,
            "unsharded gradients": gathered_grads,
        },
        "optimizer": {
            **base,
            "gradients": grads,
            "stage boundaries": boundary,
            "working": step_bytes(recipe, cuts),
        },
        "between steps": {**base, "gradients": kept_grads, "stage boundaries": boundary},
    }


def along(cuts: Cuts) -> Array:
    """Ranks that divide the sequence where sequence parallelism does."""
    return np.where(cuts.sequence_parallel, cuts.tensor, 1)


def trainable(recipe: Recipe, held: Held, cuts: Cuts) -> Held:
    """What the optimizer trains: everything, or an adapter's weights (divided as the layers are)."""
    if recipe.adapter is None:
        return held
    count = recipe.adapter.params(recipe.model) / cuts.pipeline / cuts.tensor
    return Held(count + 0 * held.dense, 0 * held.expert, 0 * held.ends)


def states(recipe: Recipe, cuts: Cuts) -> dict[str, Array]:
    """Weights, gradients and optimizer state in bytes."""
    numbers, how = recipe.numbers, recipe.how
    held = params_held(recipe.model, how, cuts)
    train = trainable(recipe, held, cuts)
    matrices = held.dense - held.ends + held.expert
    cache = numbers.weight_cache * matrices / np.where(cuts.zero == 3, cuts.state_shards, 1)
    weights = divided(held, cuts, 3) * numbers.params
    if recipe.adapter is not None:
        # Matrices of the layers are kept in base_bits; embedding, head and norms in the recipe's width.
        quantized = matrices * recipe.adapter.base_bits / 8 + held.ends * numbers.params
        own = train.dense * (recipe.adapter.weight_bytes or numbers.params)
        if (
            recipe.adapter.base_bits < 16
        ):  # a map's weights are unpacked to compute with them, the next while one is
            widest = max(linear.weights for linear in recipe.model.linears(recipe.kinds[-1]))
            quantized = quantized + 2 * widest * numbers.compute
        weights = quantized / np.where(cuts.zero == 3, cuts.state_shards, 1) + own
    moment = 1.0 if recipe.optimizer.endswith("8bit") else numbers.moments
    optimizer = divided(train, cuts, 1) * (numbers.master + MOMENTS[recipe.optimizer] * moment)
    gradients = divided(train, cuts, 2) * numbers.grads
    if how.optimizer_in_backward:
        gradients = gradients / recipe.model.num_layers
    if recipe.offload in ("optimizer", "params"):
        optimizer = 0 * optimizer
    return {"weights": weights, "weight cache": cache, "optimizer": optimizer, "gradients": gradients}


def encoder_decoder_bytes(recipe: Recipe, cuts: Cuts) -> Array:
    """Saved activations of an encoder and a decoder on one stage; cross attention reads keys of the encoder."""
    model, how, numbers = recipe.model, recipe.how, recipe.numbers
    decoder = replace(cuts, seq_len=(recipe.target_len or cuts.seq_len) + 0 * cuts.seq_len)
    encoder = layers_bytes(recipe, "dense", model.num_encoder_layers + 0 * cuts.stage, cuts)
    own = layers_bytes(recipe, "dense", model.num_layers + 0 * cuts.stage, decoder)
    parts = total(cross_attention_saved(model, how, numbers))
    scores = parts.score * decoder.tokens * cuts.seq_len / cuts.tensor
    cross = replace(parts, score=0.0).on(decoder) + scores
    keys = (model.kv_width + model.v_width) * numbers.compute * cuts.tokens / cuts.tensor
    return encoder + own + model.num_layers * (cross + keys)


def saved_bytes(recipe: Recipe, cuts: Cuts) -> Array:
    """Saved activations of all layers and of all micro-batches in flight on a rank."""
    if recipe.model.num_encoder_layers:
        return encoder_decoder_bytes(recipe, cuts)
    result = np.zeros_like(cuts.tokens)
    for chunk in range(int(np.max(cuts.virtual))):
        counts = layers_in_chunk(recipe.model, cuts, chunk)
        alive = chunks_alive(cuts, recipe.schedule, chunk)
        for kind in recipe.kinds:
            result = result + alive * layers_bytes(recipe, kind, counts[kind], cuts)
    mtp = recipe.model.num_mtp_layers * layers_bytes(recipe, recipe.model.layer_kinds()[-1], 1, cuts)
    return result + cuts.is_last * mtp


def layers_bytes(recipe: Recipe, kind: str, layers: Array | int, cuts: Cuts) -> Array:
    """Saved bytes of ``layers`` layers of a kind for one micro-batch under the recompute policy."""
    model, how, numbers = recipe.model, recipe.how, recipe.numbers
    dropped = per_token(model, kind, recipe.policy, how, numbers).on(cuts)
    if recipe.policy.name == "full" and recipe.recompute_every > 1:
        dropped = dropped / recipe.recompute_every
    if not recipe.recompute_layers or recipe.policy.name == "none":
        return layers * dropped
    some = np.minimum(layers, recipe.recompute_layers)
    return some * dropped + (layers - some) * per_token(
        model, kind, replace(recipe.policy, name="none"), how, numbers
    ).on(cuts)


def boundary_bytes(recipe: Recipe, cuts: Cuts) -> Array:
    """Inputs and outputs of a pipeline stage that the schedule holds: one set for each virtual stage."""
    tensor = cuts.tokens * recipe.model.hidden_size * recipe.numbers.compute / along(cuts)
    return np.where(cuts.pipeline > 1, recipe.how.boundary_tensors * cuts.virtual, 0) * tensor


def unsharded(recipe: Recipe, cuts: Cuts) -> tuple[Array, Array]:
    """Weights and gradients that ZeRO-3 gathers: the ends for the whole step, two layers at a time."""
    numbers, held = recipe.numbers, params_held(recipe.model, recipe.how, cuts)
    layer = np.zeros_like(cuts.tokens)
    for kind in recipe.kinds:
        count = layer_count(recipe.model, kind)
        size = count.split / cuts.tensor + count.whole + count.expert / (cuts.expert * cuts.expert_tensor)
        layer = np.maximum(layer, size)
    gathered = (cuts.zero == 3) & (cuts.state_shards > 1)
    width = min(numbers.compute, numbers.params)
    weights = gathered * width * (held.ends + (PREFETCHED_LAYERS + 1) * layer)
    grads = gathered * numbers.unsharded_grads * PREFETCHED_LAYERS * layer
    return weights, grads


def working_bytes(recipe: Recipe, cuts: Cuts) -> Array:
    """Room that backward of one layer needs: gradients of its widest tensors, and what is recomputed."""
    model, how, numbers = recipe.model, recipe.how, recipe.numbers
    worst = np.zeros_like(cuts.tokens)
    for kind in recipe.kinds:
        everything = kept(model, kind, replace(recipe.policy, name="none"), how, numbers)
        wide = [t for t in everything if t.name.startswith("mlp ") or t.module == "core_attn"]
        room = total(wide).on(cuts) + cuts.tokens * model.hidden_size * numbers.compute / along(cuts)
        if recipe.policy.name != "none":
            again = total(everything).on(cuts) - per_token(model, kind, recipe.policy, how, numbers).on(cuts)
            room = room + again * (recipe.recompute_every if recipe.policy.name == "full" else 1)
        worst = np.maximum(worst, room)
    return worst


def step_bytes(recipe: Recipe, cuts: Cuts) -> Array:
    """Temporaries of the optimizer's step, over the parameters a rank updates."""
    train = trainable(recipe, params_held(recipe.model, recipe.how, cuts), cuts)
    return divided(train, cuts, 1) * recipe.how.step_room
