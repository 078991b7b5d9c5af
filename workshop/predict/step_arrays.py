"""How long a training step takes, and why.

A step on one rank is m micro-batches through its layers, forward and backward, plus what happens once: the
gradients are reduced, the optimizer runs. With p pipeline stages, v chunks on each, t_i the time of stage i
for one micro-batch (forward, recomputation, backward and what they wait for):

    step = [ m * max t_i                                 the slowest stage, always busy
             + (sum t_i - max t_i) / v ]                 filling and draining: (p-1)/v t for equal stages
           + exposed data-parallel communication
           + optimizer (bytes / bandwidth)
           all times 1 + skew * log2(nodes)              everyone waits for the slowest of all

Communication is **exposed** where nothing is left to hide it under. Gradients: if the stack reduces while it
works backward, the last micro-batch's backward hides them (all but the last bucket). Fully sharded
parameters (ZeRO-3, FSDP): each layer's gather hides under the layer before it, or does not, layer by layer:
max(compute, gather) + contention. Tensor-parallel all-reduces cannot hide unless the stack splits its
products.

The answer is a `StepArrays`: seconds by cause, which sum to the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from workshop.facts.model import ModelSpec
from workshop.predict.exposure import layer_params, once_per_step, pipeline_seconds, sharded_exposure
from workshop.predict.gemm import Product, training_matmul_seconds
from workshop.predict.grid import Grid
from workshop.predict.layer import Costs, Cut, Machine, kind_shares, layer_costs, layer_linears
from workshop.predict.rates import Software
from workshop.predict.setting import Setting

Numbers = Any
CAUSES = (
    "matmul",
    "attention",
    "pointwise",
    "recompute",
    "host",
    "tensor",
    "expert",
    "context",
    "head",
    "bubble",
    "pipeline",
    "data",
    "optimizer",
    "skew",
)


@dataclass(frozen=True)
class StepArrays:
    """Seconds of a step by cause, arrays over layouts; they sum to `seconds`."""

    matmul: np.ndarray  # linear maps, forward and backward
    attention: np.ndarray  # core of attention
    pointwise: np.ndarray  # norms, activations, residuals: memory-bound kernels
    recompute: np.ndarray  # everything done again
    host: np.ndarray  # waiting for kernels to be launched
    tensor: np.ndarray  # tensor-parallel communication
    expert: np.ndarray  # all-to-alls of experts
    context: np.ndarray  # context-parallel communication
    head: np.ndarray  # output head and loss
    bubble: np.ndarray  # waiting for the pipeline to fill and drain, and for its slowest stage
    pipeline: np.ndarray  # passing activations on
    data: np.ndarray  # exposed reduction of gradients, gathering of parameters
    optimizer: np.ndarray
    skew: np.ndarray  # waiting for the slowest rank

    @property
    def seconds(self) -> np.ndarray:
        """The whole step."""
        return np.add.reduce([getattr(self, cause) for cause in CAUSES])

    def at(self, index: int) -> dict[str, float]:
        """Seconds by cause of one layout."""
        return {f.name: float(getattr(self, f.name)[index]) for f in fields(self)}


def predict_steps(setting: Setting, grid: Grid) -> StepArrays:
    """Seconds by cause for every layout of `grid`. The plain version: every layout is computed in full."""
    return combine(setting, grid, layer_and_head(setting, setting.cut(grid)))


@dataclass(frozen=True)
class Passes:
    """One micro-batch through an average layer, forward and backward, and through the output head."""

    forward: Costs
    backward: Costs
    head: np.ndarray

    def take(self, index: np.ndarray) -> Passes:
        """The passes of these layouts."""
        forward, backward = (
            Costs(*(getattr(costs, f.name)[index] for f in fields(Costs)))
            for costs in (self.forward, self.backward)
        )
        return Passes(forward, backward, self.head[index])


def layer_and_head(setting: Setting, cut: Cut) -> Passes:
    """What one micro-batch costs in a layer and in the head."""
    forward, backward = layer_passes(setting.model, cut, setting.machine, setting.stack)
    return Passes(forward, backward, head_seconds(setting.model, cut, setting.machine, setting.stack))


def layer_passes(model: ModelSpec, cut: Cut, machine: Machine, stack: Software) -> tuple[Costs, Costs]:
    """Forward and backward of an average layer: dense and mixture layers by their share."""
    passes = [
        _scaled(layer_costs(model, kind, cut, machine, stack), share) for kind, share in kind_shares(model)
    ]
    if len(passes) == 1:
        return passes[0]
    return _sum(p[0] for p in passes), _sum(p[1] for p in passes)


def _scaled(passes: tuple[Costs, Costs], share: float) -> tuple[Costs, Costs]:
    if share == 1:
        return passes
    nothing = Costs(*(np.zeros_like(getattr(passes[0], f.name)) for f in fields(Costs)))
    return nothing.plus(passes[0], share), nothing.plus(passes[1], share)


def _sum(costs: Any) -> Costs:
    costs = list(costs)
    total = costs[0]
    for other in costs[1:]:
        total = total.plus(other)
    return total


def head_seconds(model: ModelSpec, cut: Cut, machine: Machine, stack: Software) -> np.ndarray:
    """Output head and loss of one micro-batch, forward and backward, on the last stage."""
    t, tokens = np.asarray(cut.tensor), cut.tokens
    product = Product(tokens, model.vocab_size / t, model.hidden_size)
    products = training_matmul_seconds(machine.rates, machine.attention, machine.bandwidth, product).sum(
        axis=0
    )
    loss = stack.logit_bytes * tokens * model.vocab_size / t / machine.bandwidth
    return products + loss + machine.wires.seconds("all_reduce", tokens * model.hidden_size * 2, t)


def combine(setting: Setting, grid: Grid, passes: Passes) -> StepArrays:
    """From the costs of a layer and of the head to the whole step."""
    model, machine, stack = setting.model, setting.machine, setting.stack
    forward, backward, head = passes.forward, passes.backward, passes.head
    p, m = grid.pipeline, grid.accumulation
    again = recompute_seconds(model, grid, forward, stack)
    sharded = sum(sharded_exposure(model, grid, (forward, backward), machine, setting.precision))
    accumulate = sum(layer_params(model, grid)) * stack.accumulate_bytes / machine.bandwidth
    layer = forward.seconds + backward.seconds + again + sharded + accumulate
    layers = fullest_stage(model, grid, balanced=stack.balanced_stages)
    slowest, bubble = stages(model, grid, layers, layer, head)
    busy = m * layers
    windows = (layers * forward.seconds, layers * (backward.seconds + again))
    exposed, optimizer = once_per_step(model, grid, windows, machine, stack)
    causes = {
        "matmul": busy * (forward.matmul + backward.matmul),
        "attention": busy * (forward.attention + backward.attention),
        "pointwise": busy * (forward.pointwise + backward.pointwise + accumulate),
        "recompute": busy * again,
        "host": busy * (_waits(forward) + _waits(backward)),
        "tensor": busy * (forward.tensor + backward.tensor),
        "expert": busy * (forward.expert + backward.expert),
        "context": busy * (forward.context + backward.context),
        "head": np.where(p == 1, m * head, 0),
        "bubble": bubble + m * (slowest - layers * layer) - np.where(p == 1, m * head, 0),
        "pipeline": m * pipeline_seconds(model, grid, setting.cut(grid), machine, stack),
        "data": busy * sharded + exposed,
        "optimizer": optimizer,
    }
    nodes = np.maximum(grid.world_size / machine.wires.per_node, 1)
    skew = machine.rates.skew * np.log2(nodes) * sum(causes.values())
    return StepArrays(**causes, skew=skew)


def fullest_stage(model: ModelSpec, grid: Grid, *, balanced: bool = False) -> np.ndarray:
    """Layers on the fullest stage.

    `balanced`: as nanotron cuts a model (github huggingface/nanotron, src/nanotron/models/base.py). A layer
    and the output head count by their weights, and a stage ends with the block that passes its share of the
    sum, so the last stage has fewer layers, to make up for the head.
    """
    p, v = grid.pipeline, grid.virtual_stages
    layers = np.ceil(model.num_layers / (p * v)) * v
    if not balanced:
        return layers
    head = model.hidden_size * model.vocab_size / layer_weights(model)
    share = np.floor((model.num_layers + head) / p) + 1
    return np.where((p > 1) & (v == 1), np.minimum(share, model.num_layers), layers)


@cache
def layer_weights(model: ModelSpec) -> float:
    """Weights of an average layer's linear maps that a token passes."""
    return sum(
        share * sum(x.weights * x.active for x in layer_linears(model, kind))
        for kind, share in kind_shares(model)
    )


def stages(
    model: ModelSpec, grid: Grid, layers: np.ndarray, layer: np.ndarray, head: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of the slowest stage for one micro-batch, and of filling and draining the pipeline."""
    p = grid.pipeline
    last = np.maximum(model.num_layers - (p - 1) * layers, 0) * layer + head  # it may be the thinner one
    slowest = np.maximum(layers * layer, last)
    total = np.where(p > 1, model.num_layers * layer + head, slowest)
    return slowest, (total - slowest) / grid.virtual_stages


def _waits(costs: Costs) -> np.ndarray:
    return costs.seconds - costs.device - costs.tensor - costs.expert - costs.context


def recompute_seconds(model: ModelSpec, grid: Grid, forward: Costs, stack: Software) -> np.ndarray:
    """Seconds of recomputation per layer: the forward again, or only the part that is cheap to repeat.

    PyTorch's checkpoint (use_reentrant=False) stops as soon as everything that was saved is there again, and
    the result of the MLP's last product never was: with h -> 4h -> h that is a third of the layer's products.
    """
    selective = (
        forward.attention if stack.attention == "unfused" else forward.attention + forward.pointwise / 2
    )
    full = forward.seconds
    if stack.early_stop:
        weights = [x.weights * x.active for x in layer_linears(model, kind_shares(model)[-1][0])]
        full = full - forward.matmul * weights[-1] / sum(weights) - forward.tensor / 2
    again = np.where(grid.recompute == 2, full, np.where(grid.recompute == 1, selective, 0.0))
    return again * grid.recompute_share
