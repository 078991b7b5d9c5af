"""What stays on a rank for the whole step: weights, gradients, optimizer state; and what ZeRO-3 gathers of
it.
"""

from __future__ import annotations

import numpy as np

from workshop.facts.precision import MOMENTS
from workshop.predict.cuts import Array, Cuts
from workshop.predict.memory.states import Held, divided, layer_count
from workshop.predict.recipe import Recipe

PREFETCHED_LAYERS = 2
"""Layers unsharded at once by FSDP: the one that computes and the one being gathered (arXiv 2304.11277,
3.3.2).
"""


def trainable(recipe: Recipe, held: Held, cuts: Cuts) -> Held:
    """What the optimizer trains: everything, or an adapter's weights (divided as the layers are)."""
    if recipe.adapter is None:
        return held
    count = recipe.adapter.params(recipe.model) / cuts.pipeline / cuts.tensor
    return Held(count + 0 * held.dense, 0 * held.expert, 0 * held.ends)


def weight_bytes(recipe: Recipe, held: Held, cuts: Cuts) -> Array:
    """Weights as they are stored on the rank.

    With an adapter, matrices of the layers are kept in ``base_bits``, and embedding, head and norms in the
    recipe's width; 4-bit matrices are unpacked to compute with them, the next while one is in use.
    """
    numbers, adapter = recipe.numbers, recipe.adapter
    if adapter is None:
        return divided(held, cuts, 3) * numbers.params
    matrices = held.dense - held.ends + held.expert
    frozen = matrices * adapter.base_bits / 8 + held.ends * numbers.params
    if adapter.base_bits < 16 and recipe.how.four_bit_inputs:
        frozen = (
            frozen
            + 2 * max(map_.weights for map_ in recipe.model.linears(recipe.kinds[-1])) * numbers.compute
        )
    own = trainable(recipe, held, cuts).dense * (adapter.weight_bytes or numbers.params)
    return frozen / np.where(cuts.zero == 3, cuts.state_shards, 1) + own


def states(recipe: Recipe, held: Held, cuts: Cuts) -> dict[str, Array]:
    """Weights, gradients and optimizer state in bytes."""
    numbers, train = recipe.numbers, trainable(recipe, held, cuts)
    moment = 1.0 if recipe.optimizer.endswith("8bit") else numbers.moments
    optimizer = divided(train, cuts, 1) * (numbers.master + MOMENTS[recipe.optimizer] * moment)
    gradients = divided(train, cuts, 2) * numbers.grads
    if recipe.how.optimizer_in_backward:
        gradients = gradients / recipe.model.num_layers
    found = {"weights": weight_bytes(recipe, held, cuts), "optimizer": optimizer, "gradients": gradients}
    if numbers.weight_cache:
        matrices = held.dense - held.ends + held.expert
        found["weight cache"] = (
            numbers.weight_cache * matrices / np.where(cuts.zero == 3, cuts.state_shards, 1)
        )
    # What is offloaded lives on the host; what ZeRO-3 gathers is counted by :func:`unsharded`.
    gone = {"optimizer": ("optimizer",), "params": tuple(found)}.get(recipe.offload, ())
    return {part: size * (part not in gone) for part, size in found.items()}


def unsharded(recipe: Recipe, held: Held, cuts: Cuts) -> tuple[Array, Array]:
    """Weights and gradients that ZeRO-3 gathers: the ends for the whole step, two layers at a time."""
    if not np.any(cuts.zero == 3):
        return np.zeros(()), np.zeros(())
    numbers, layer = recipe.numbers, np.zeros_like(cuts.tokens)
    for kind in recipe.kinds:
        count = layer_count(recipe.model, kind)
        size = count.split / cuts.tensor + count.whole + count.expert / (cuts.expert * cuts.expert_tensor)
        layer = np.maximum(layer, size)
    gathered = (cuts.zero == 3) & (cuts.state_shards > 1)
    width = min(numbers.compute, numbers.params)
    weights = gathered * width * (held.ends + (PREFETCHED_LAYERS + 1) * layer)
    return weights, gathered * numbers.unsharded_grads * PREFETCHED_LAYERS * layer


def step_bytes(recipe: Recipe, held: Held, cuts: Cuts) -> Array:
    """Temporaries of AdamW's step, over the parameters a rank updates; SGD updates in place."""
    if MOMENTS[recipe.optimizer] < 2:
        return np.zeros(())
    room = recipe.how.step_room * recipe.numbers.moments / 4
    return divided(trainable(recipe, held, cuts), cuts, 1) * room
