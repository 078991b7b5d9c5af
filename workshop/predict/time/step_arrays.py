"""How long a training step takes, and why.

A step on one rank is m micro-batches through its layers, forward and backward, plus what happens once: the
gradients are reduced, the optimizer runs. With p pipeline stages, v chunks on each, t_i the time of stage i
for one micro-batch (forward, recomputation, backward and what they wait for):

    step = [ m * max t_i                                 the slowest stage, always busy
             + bubble(schedule) ]                        filling and draining, `pipeline.closed`:
                                                         1F1B (sum t_i - max t_i) / v, naive m times that ...
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
from typing import Any, NamedTuple

import numpy as np

from workshop.facts.model import ModelSpec
from workshop.predict.case import Setting
from workshop.predict.grid import Cut, Grid
from workshop.predict.pipeline.closed import DUALPIPE, NAIVE, ZBV, filling_seconds, waited_for
from workshop.predict.time.exposure import (
    offload_exposure,
    once_per_step,
    pipeline_seconds,
    sharded_exposure,
    trained_layer_params,
)
from workshop.predict.time.layer import Costs, LayerPasses, kind_shares, layer_costs, layer_linears
from workshop.predict.time.matmul import Product, training_matmul_seconds
from workshop.predict.time.rates import Software
from workshop.predict.time.repeated import selective_seconds

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
    "offload",
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
    offload: np.ndarray  # waiting for the host's link
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
    return combine(setting, grid, layer_and_head(setting, grid.cut(setting.seq_len)))


class Head(NamedTuple):
    """Seconds of the output head and the loss for one micro-batch: forward, backward, and of it the weight's
    gradient.
    """

    forward: np.ndarray
    backward: np.ndarray
    weight: np.ndarray

    @property
    def seconds(self) -> np.ndarray:
        """Forward and backward."""
        return self.forward + self.backward


@dataclass(frozen=True)
class Passes:
    """One micro-batch through an average layer, forward and backward, and through the output head.

    weight: the part of backward that is weight gradients. selective: what selective recomputation repeats.
    """

    forward: Costs
    backward: Costs
    weight: np.ndarray
    selective: np.ndarray
    head: Head

    def take(self, index: np.ndarray) -> Passes:
        """The passes of these layouts."""
        forward, backward = (
            Costs(*(getattr(costs, f.name)[index] for f in fields(Costs)))
            for costs in (self.forward, self.backward)
        )
        head = Head(*(seconds[index] for seconds in self.head))
        return Passes(forward, backward, self.weight[index], self.selective[index], head)


def layer_and_head(setting: Setting, cut: Cut) -> Passes:
    """What one micro-batch costs in a layer and in the head."""
    forward, backward, weight = layer_passes(setting, cut)
    selective = selective_seconds(setting, cut, forward)
    return Passes(forward, backward, weight, selective, head_seconds(setting, cut))


def layer_passes(setting: Setting, cut: Cut) -> LayerPasses:
    """Forward and backward of an average layer: dense and mixture layers by their share."""
    shares = kind_shares(setting.model)
    passes = [layer_costs(setting, kind, cut) for kind, _ in shares]
    if len(passes) == 1:
        return passes[0]
    nothing = Costs(*(np.zeros_like(passes[0].weight) for _ in fields(Costs)))
    forward = backward = nothing
    for costs, (_, share) in zip(passes, shares, strict=True):
        forward, backward = forward.plus(costs.forward, share), backward.plus(costs.backward, share)
    weight = sum(costs.weight * share for costs, (_, share) in zip(passes, shares, strict=True))
    return LayerPasses(forward, backward, np.asarray(weight))


def head_seconds(setting: Setting, cut: Cut) -> Head:
    """Output head and loss of one micro-batch on the last stage; a frozen head has no weight gradient."""
    model, machine = setting.model, setting.machine
    t, tokens = np.asarray(cut.tensor), cut.tokens
    product = Product(tokens, model.vocab_size / t, model.hidden_size)
    width = machine.activation_bytes
    products = training_matmul_seconds(machine.rates, machine.attention, machine.bandwidth, product, width)
    loss = setting.stack.logit_bytes * tokens * model.vocab_size / t / machine.bandwidth
    reduced = machine.wires.seconds("all_reduce", tokens * model.hidden_size * width, t)
    weight = products[2] * (setting.adapter is None)
    return Head(products[0] + loss / 2, products[1] + weight + loss / 2 + reduced, weight)


def combine(setting: Setting, grid: Grid, passes: Passes) -> StepArrays:
    """From the costs of a layer and of the head to the whole step."""
    model, machine, stack = setting.model, setting.machine, setting.stack
    forward, backward, head = passes.forward, passes.backward, passes.head
    p, m = grid.pipeline, grid.accumulation
    again = recompute_seconds(model, grid, passes, stack)
    ahead, back = sharded_exposure(setting, grid, (forward, backward))
    moved = offload_exposure(setting, grid, (forward, backward))
    sharded = ahead + back
    trained = trained_layer_params(setting, grid).sum
    accumulate = trained * stack.accumulate_bytes / machine.bandwidth
    layer = Head(forward.seconds + ahead, backward.seconds + again + back + accumulate + moved, passes.weight)
    if more := model.num_mtp_layers:  # each predicts one token further: a layer and the head again
        head = Head(*((1 + more) * seconds + more * each for seconds, each in zip(head, layer, strict=True)))
    filled = stages(setting, grid, layer, head)
    layers = filled.layers
    busy = m * layers
    windows = (layers * forward.seconds, layers * (backward.seconds + again))
    once = once_per_step(setting, grid, windows)
    alone = np.where(p == 1, m * head.seconds, 0)
    causes = {
        "matmul": busy * (forward.matmul + backward.matmul),
        "attention": busy * (forward.attention + backward.attention),
        "pointwise": busy * (forward.pointwise + backward.pointwise + accumulate),
        "recompute": busy * again,
        "host": busy * (_waits(forward) + _waits(backward)),
        "tensor": busy * (forward.tensor + backward.tensor),
        "expert": busy * (forward.expert + backward.expert),
        "context": busy * (forward.context + backward.context),
        "head": alone,
        "bubble": filled.bubble + m * (filled.slowest - layers * layer.seconds) - alone,
        "pipeline": m * pipeline_seconds(setting, grid, filled.chunks),
        "data": busy * sharded + once.data,
        "optimizer": once.optimizer,
        "offload": busy * moved + once.offload,
    }
    nodes = np.maximum(grid.world_size / machine.wires.per_node, 1)
    skew = machine.rates.skew * np.log2(nodes) * sum(causes.values())
    return StepArrays(**causes, skew=skew)


class RankLayers(NamedTuple):
    """Layers of the first rank of a pipeline, of the fullest between, and of the last; and what part of the
    output head the first and the last have. Folded pipelines end where they begin.
    """

    first: np.ndarray
    middle: np.ndarray
    last: np.ndarray
    head_first: Any = 0.0
    head_last: Any = 1.0


def rank_layers(model: ModelSpec, grid: Grid) -> RankLayers:
    """Layers by rank, cut as `facts.stages.chunks` does: what does not divide goes one each to the first.

    A rank of DualPipe works on two stages, each for half of the micro-batches: it counts half of both.
    """
    p, v = grid.pipeline, grid.virtual_stages
    zbv, dual = grid.schedule == ZBV, grid.schedule == DUALPIPE
    is_folded = bool((zbv | dual).any())
    total = np.where(zbv, 2 * p, p * v) if is_folded else p * v
    given, taken = grid.first_layers >= 0, (grid.last_layers >= 0) & (total > 1)
    if not (given.any() or taken.any()):
        size, extra = np.divmod(model.num_layers, total)
        before: Any = 0
        first_chunk, last_chunk = size + (extra > 0), size
    else:
        free = model.num_layers - np.where(given, grid.first_layers, 0) - np.where(taken, grid.last_layers, 0)
        size, extra = np.divmod(free, np.maximum(total - given - taken, 1))
        before = given.astype(int)
        first_chunk = np.where(given, grid.first_layers, size + (extra > 0))
        last_chunk = np.where(taken, grid.last_layers, size)
    # Longer chunks have the numbers before .. before + extra - 1; rank r has the numbers r, r + p, r + 2p ...
    first = first_chunk + (v - 1) * size + np.maximum(extra + before - 1, 0) // p
    last = last_chunk + (v - 1) * size + (extra + before) // p
    middle = np.where(p > 2, v * size + np.maximum(before + extra - 2, -1) // p + 1, 0)
    last = np.where(p > 1, last, first)
    if not is_folded:
        return RankLayers(first, middle, last)
    longer = before + extra
    folded = first_chunk + last_chunk
    inner = 2 * size + np.where(longer > total // 2, 2, np.where(longer > 1, 1, 0))
    half = np.where(dual, 0.5, 1.0)
    many = p > np.where(dual, 2, 1)
    return RankLayers(
        np.where(zbv | dual, folded * half, first),
        np.where(zbv | dual, np.where(many, inner * half, 0), middle),
        np.where(zbv | dual, 0, last),
        np.where(zbv | dual, half, 0.0),
        np.where(zbv | dual, 0.0, 1.0),
    )


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


class Filled(NamedTuple):
    """A pipeline: layers of the fullest rank, seconds of the slowest for one micro-batch, the bubble, and
    chunks on a rank.
    """

    layers: np.ndarray
    slowest: np.ndarray
    bubble: np.ndarray
    chunks: np.ndarray


def stages(setting: Setting, grid: Grid, layer: Head, head: Head) -> Filled:
    """The slowest rank and the bubble, from seconds of a layer and of the head."""
    model, p = setting.model, grid.pipeline
    x = rank_layers(model, grid)
    if setting.stack.balanced_stages:
        full = fullest_stage(model, grid, balanced=True)
        x = RankLayers(full, full, np.maximum(model.num_layers - (p - 1) * full, 0))
    first = x.first * layer.seconds + x.head_first * head.seconds
    middle = x.middle * layer.seconds
    last = x.last * layer.seconds + x.head_last * head.seconds
    slowest = np.maximum(np.maximum(first, middle), last)
    layer_wait = waited_for(grid.schedule, *layer)
    head_wait = waited_for(grid.schedule, *head)
    at = [slowest == last, slowest == first]
    own_layers = np.select(at, [x.last, x.first], x.middle)
    own_head = np.select(at, [x.head_last + 0.0 * p, x.head_first + 0.0 * p], 0.0)
    total = model.num_layers * layer_wait + head_wait
    own = np.where(p > 1, own_layers * layer_wait + own_head * head_wait, total)
    bubble = filling_seconds(grid.schedule, total, own, grid.accumulation, grid.virtual_stages)
    layers = np.maximum(np.maximum(x.first, x.middle), x.last)
    chunks = grid.virtual_stages * 1
    if (grid.schedule == ZBV).any():
        chunks = np.where(grid.schedule == ZBV, 2, chunks)
    if (grid.schedule == NAIVE).any():  # one micro-batch at a time: each passes all ranks before the next
        chunks = np.where(grid.schedule == NAIVE, chunks * np.maximum(p - 1, 1), chunks)
    return Filled(layers, slowest, np.where(p > 1, bubble, 0.0), chunks)


def _waits(costs: Costs) -> np.ndarray:
    return costs.seconds - costs.device - costs.tensor - costs.expert - costs.context


def recompute_seconds(model: ModelSpec, grid: Grid, passes: Passes, stack: Software) -> np.ndarray:
    """Seconds of recomputation per layer: the forward again, or only the part that is cheap to repeat.

    PyTorch's checkpoint (use_reentrant=False) stops as soon as everything that was saved is there again, and
    the result of the MLP's last product never was: with h -> 4h -> h that is a third of the layer's products.
    """
    forward = passes.forward
    full = forward.seconds
    if stack.early_stop:
        weights = [x.weights * x.active for x in layer_linears(model, kind_shares(model)[-1][0])]
        full = full - forward.matmul * weights[-1] / sum(weights) - forward.tensor / 2
    again = np.where(grid.recompute == 2, full, np.where(grid.recompute == 1, passes.selective, 0.0))
    return again * grid.recompute_share
