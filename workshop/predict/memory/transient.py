"""What comes and goes within a step: saved activations of all layers, and room for one layer's backward."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from workshop.predict.cuts import Array, Cuts
from workshop.predict.depth import layers_in_chunk
from workshop.predict.memory.activations import chunks_alive, kept, per_token, total
from workshop.predict.memory.saved import cross_attention_saved
from workshop.predict.recipe import Recipe


def along(cuts: Cuts) -> Array:
    """Ranks that divide the sequence where sequence parallelism does."""
    return np.where(cuts.sequence_parallel, cuts.tensor, 1)


def encoder_decoder_bytes(recipe: Recipe, cuts: Cuts) -> Array:
    """Saved activations of an encoder and a decoder on one stage; cross attention reads the encoder."""
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
        if recipe.policy.quantized and not how.four_bit_inputs:
            room = room + max(map_.weights for map_ in model.linears(kind)) * numbers.compute
        worst = np.maximum(worst, room)
    return worst
