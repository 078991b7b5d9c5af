"""Communication around the layers: how much of it nothing hides.

Gradients can be reduced while the last micro-batch's backward runs; fully sharded parameters gathered while
the layer before computes; activations passed on while the next micro-batch does. What is hidden still takes
a little: the kernels of collectives occupy multiprocessors and memory bandwidth (`Rates.contention`), the
more the faster they run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workshop.facts.model import ModelSpec
from workshop.facts.precision import Precision
from workshop.predict.grid import Grid
from workshop.predict.layer import Costs, Cut, Machine, mean_layer_params
from workshop.predict.rates import Software


def layer_params(model: ModelSpec, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Parameters of an average layer on one rank before data-parallel sharding: plain ones, and experts."""
    plain, experts = mean_layer_params(model)
    return plain / grid.tensor, experts / grid.expert


def sharded_exposure(
    model: ModelSpec, grid: Grid, passes: tuple[Costs, Costs], machine: Machine, precision: Precision
) -> tuple[np.ndarray, np.ndarray]:
    """Per layer and micro-batch, what fully sharded parameters cost beyond what compute hides."""
    forward, backward = passes
    sharded = (grid.zero == 3) & (grid.shard > 1)
    if not sharded.any():
        return np.zeros(len(grid)), np.zeros(len(grid))
    plain, experts = layer_params(model, grid)
    wires, stride = machine.wires, grid.tensor * grid.context
    wide = 2.0
    size = plain * wide
    gather = wires.seconds("all_gather", size, grid.shard, stride)
    scatter = wires.seconds("reduce_scatter", plain * max(precision.unsharded_grads, 2.0), grid.shard, stride)
    within = np.maximum(grid.shard * grid.tensor * grid.context // np.maximum(grid.expert, 1), 1)
    gather = gather + wires.seconds("all_gather", experts * wide, within, grid.expert)
    scatter = scatter + wires.seconds("reduce_scatter", experts * wide, within, grid.expert)
    hidden = machine.rates.contention * wires.load(grid.shard, stride)
    ahead = np.maximum(gather - forward.seconds, 0) + hidden * np.minimum(gather, forward.seconds)
    back = np.maximum(gather + scatter - backward.seconds, 0) + hidden * np.minimum(
        gather + scatter, backward.seconds
    )
    return np.where(sharded, ahead, 0.0), np.where(sharded, back, 0.0)


def pipeline_seconds(model: ModelSpec, grid: Grid, cut: Cut, machine: Machine, stack: Software) -> np.ndarray:
    """Per micro-batch, passing activations on and gradients back, v times each.

    The ranks of a tensor group hold the same activations, so each sends its share over its own adapter, and
    they put the pieces together over the link ("scatter/gather", arXiv 2104.04473, section 4.1); with
    sequence parallelism the activations are cut already.
    """
    if grid.pipeline.max() <= 1:
        return np.zeros(len(grid))
    whole = cut.tokens * model.hidden_size * 2
    stride = grid.world_size // grid.pipeline
    rate = np.where(stride < machine.wires.per_node, machine.wires.link, machine.wires.network)
    gather = np.where(grid.sequence_parallel, 0.0, machine.wires.seconds("all_gather", whole, grid.tensor))
    once = machine.wires.link_seconds + whole / grid.tensor / rate + gather
    keep = 0.2 if stack.overlap_pipeline else 1.0
    return np.where(grid.pipeline > 1, 2 * grid.virtual_stages * once * keep, 0.0)


def once_per_step(
    model: ModelSpec,
    grid: Grid,
    windows: tuple[np.ndarray, np.ndarray],
    machine: Machine,
    stack: Software,
) -> tuple[np.ndarray, np.ndarray]:
    """Exposed reduction of gradients and gathering of new parameters, and the optimizer's own time.

    windows: seconds of one micro-batch's forward and backward on a rank, under which they may hide:
    gradients are reduced while the last micro-batch runs backward, new parameters gathered while the first
    runs forward.
    """
    plain, experts = layer_params(model, grid)
    layers = np.ceil(model.num_layers / grid.pipeline)
    tables = 1 if model.tied_embeddings else 2
    ends = model.vocab_size * model.hidden_size / grid.tensor * np.where(grid.pipeline == 1, tables, 1)
    dense, expert = plain * layers + ends, experts * layers
    back = share_out("reduce_scatter", dense, expert, stack.gradient_bytes, grid, machine)
    ahead = share_out(
        "all_gather", dense, expert, np.where(grid.zero >= 1, 2.0, stack.gradient_bytes), grid, machine
    )
    exposed = back + ahead
    if stack.overlap_gradients:
        load = machine.rates.contention * machine.wires.load(grid.data * grid.context, grid.tensor)
        exposed = sum(
            _unhidden(work, window, layers, load) for work, window in zip((ahead, back), windows, strict=True)
        )
    # Fully sharded layers were reduced as they went; what is left is the replicas' all-reduce of hybrid
    # sharding.
    outer = machine.wires.seconds(
        "all_reduce",
        (dense + expert) / grid.shard * stack.gradient_bytes,
        grid.replicate,
        grid.tensor * grid.context * grid.shard,
    )
    exposed = np.where(grid.zero == 3, np.maximum(outer - windows[1], outer / np.maximum(layers, 1)), exposed)
    owners = np.where(grid.zero >= 1, grid.shard, 1)
    optimizer = (dense + expert) / owners * stack.optimizer_bytes / machine.bandwidth
    return exposed, optimizer


def share_out(
    collective: str, dense: np.ndarray, expert: np.ndarray, width: Any, grid: Grid, machine: Machine
) -> np.ndarray:
    """Seconds of half an all-reduce of a rank's parameters over those who hold the same: experts have fewer
    copies.
    """
    data = grid.data * grid.context
    copies = np.maximum(data * grid.tensor // np.maximum(grid.expert, 1), 1)
    seconds = machine.wires.seconds(collective, dense * width, data, grid.tensor)
    return seconds + np.where(
        expert > 0, machine.wires.seconds(collective, expert * width, copies, grid.expert), 0.0
    )


def _unhidden(work: np.ndarray, window: np.ndarray, layers: np.ndarray, contention: np.ndarray) -> np.ndarray:
    """What sticks out of a window: at least one layer's share, and a little of what is hidden."""
    return np.maximum(work - window, work / np.maximum(layers, 1)) + contention * np.minimum(work, window)
