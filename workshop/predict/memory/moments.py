"""The moments of a step at which memory may peak, each as bytes by part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from workshop.predict.cuts import Array, Cuts
from workshop.predict.memory.loss import ends_saved, head_gradients, loss_bytes
from workshop.predict.memory.resident import states, step_bytes, unsharded
from workshop.predict.memory.states import padded_vocab, params_held
from workshop.predict.memory.transient import along, boundary_bytes, saved_bytes, working_bytes
from workshop.predict.pipeline.v_shaped import FOLDS, folded
from workshop.predict.recipe import Recipe

Parts = dict[str, Array]


def moments(recipe: Recipe, cuts: Cuts, workspace: int = 0) -> dict[str, Parts]:
    """Bytes by part at each moment of the step; see :mod:`workshop.predict.memory`."""
    if recipe.schedule in FOLDS:
        halves = [straight(*half, workspace) for half in folded(recipe, cuts)]
        return {name: joined(halves[0][name], halves[1][name]) for name in halves[0]}
    return straight(recipe, cuts, workspace)


def straight(recipe: Recipe, cuts: Cuts, workspace: int) -> dict[str, Parts]:
    """:func:`moments` where stages follow each other."""
    held = params_held(recipe.model, recipe.how, cuts)
    base = states(recipe, held, cuts)
    grads = base.pop("gradients")
    kept_grads = grads if recipe.how.buffers == "contiguous" else 0 * grads
    early = grads if recipe.how.buffers == "contiguous" else np.where(cuts.accumulation > 1, grads, 0)
    if workspace:
        base["workspace"] = workspace + 0 * grads
    if recipe.how.bucket_bytes:
        base["buckets"] = np.where(cuts.state_shards * cuts.replicate > 1, recipe.how.bucket_bytes, 0)
    base["stage boundaries"] = boundary_bytes(recipe, cuts)
    window, gathered_grads = unsharded(recipe, held, cuts)
    gathered = {**base, "unsharded weights": window}
    forward = {**gathered, "gradients": early, "activations": activation_bytes(recipe, cuts)}
    backward = {"working": working_bytes(recipe, cuts), "unsharded gradients": gathered_grads}
    late = grads - embedding_gradients(recipe, cuts) if recipe.how.buffers == "freed" else grads
    step = {"working": step_bytes(recipe, held, cuts)}
    return {
        "loss": {**forward, **loss_parts(recipe, cuts)},
        "backward": {**forward, **backward},
        "first layer": {**gathered, "gradients": late, **backward},
        "end of backward": {**gathered, "gradients": grads, "unsharded gradients": gathered_grads},
        "optimizer": {**base, "gradients": grads, **step},
        "between steps": {**base, "gradients": kept_grads},
    }


def embedding_gradients(recipe: Recipe, cuts: Cuts) -> Array:
    """The embedding's gradient, which comes after that of the first layer (a tied head's is there before)."""
    if recipe.adapter is not None or recipe.model.tied_embeddings:
        return np.zeros(())
    matrix = padded_vocab(recipe.model, recipe.how, cuts.tensor) * recipe.model.hidden_size / cuts.tensor
    kept = recipe.numbers.grads / np.where(cuts.zero >= 2, cuts.state_shards, 1)
    return cuts.is_first * matrix * (0 if recipe.offload == "params" else kept)


def joined(first: Parts, second: Parts) -> Parts:
    """Parts of a rank that holds two stages: it has one workspace, and works on one stage at a time."""
    names = {**first, **second}
    parts: Parts = {part: np.asarray(first.get(part, 0) + second.get(part, 0)) for part in names}
    for part in ("workspace", "buckets"):
        if part in first:
            parts[part] = first[part]
    if "working" in first:
        parts["working"] = np.maximum(first["working"], second["working"])
    return parts


def decoder_cuts(recipe: Recipe, cuts: Cuts) -> Cuts:
    """The cuts with the sequence that the head reads: the decoder's, where there is one of its own."""
    return replace(cuts, seq_len=recipe.target_len + 0 * cuts.seq_len) if recipe.target_len else cuts


def activation_bytes(recipe: Recipe, cuts: Cuts) -> Array:
    """Everything saved for backward on a rank, unless it is offloaded."""
    ends = ends_saved(recipe.model, recipe.how, recipe.numbers, decoder_cuts(recipe, cuts), along(cuts))
    return ends if recipe.offload == "activations" else saved_bytes(recipe, cuts) + ends


def loss_parts(recipe: Recipe, cuts: Cuts) -> Parts:
    """What only the loss needs."""
    parts = {
        "logits and loss": loss_bytes(recipe.model, recipe.how, recipe.numbers, decoder_cuts(recipe, cuts))
    }
    if recipe.adapter is None and recipe.how.loss == "chunked":
        parts["unsharded gradients"] = head_gradients(recipe.model, recipe.how, recipe.numbers, cuts)
    return parts
