"""How long a training step takes, and why.

A step on one rank is m micro-batches through its layers, forward and backward, plus what happens once: the
gradients are reduced, the optimizer runs. With p pipeline stages, v chunks on each, t_i the time of stage i for one
micro-batch (forward, recomputation, backward and what they wait for):

    step = [ m * max t_i                                 the slowest stage, always busy
             + (sum t_i - max t_i) / v ]                 filling and draining: (p-1)/v t for equal stages
           + exposed data-parallel communication
           + optimizer (bytes / bandwidth)
           all times 1 + skew * log2(nodes)              everyone waits for the slowest of all

Communication is **exposed** where nothing is left to hide it under. Gradients: if the stack reduces while it works
backward, the last micro-batch's backward hides them (all but the last bucket). Fully sharded parameters (ZeRO-3,
FSDP): each layer's gather hides under the layer before it, or does not, layer by layer:
max(compute, gather) + contention. Tensor-parallel all-reduces cannot hide unless the stack splits its products.

The answer is a `StepArrays`: seconds by cause, which sum to the whole. `predict_step(run)` gives one run's with
tokens/s, TFLOP/s, MFU, HFU and an interval; `predict_steps` many layouts' at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from workshop.facts.device import ClusterSpec
from workshop.facts.model import ModelSpec
from workshop.facts.precision import Precision

from .collectives import Wires
from .gemm import training_matmul_seconds
from .grid import Grid
from .layer import Costs, Cut, Machine, layer_costs
from .rates import Rates, Software

Numbers = Any
CAUSES = ("matmul", "attention", "pointwise", "recompute", "host", "tensor", "expert", "context", "head",
          "bubble", "pipeline", "data", "optimizer", "skew")


@dataclass(frozen=True)
class StepArrays:
    """Seconds of a step by cause, arrays over layouts; they sum to `seconds`."""

    matmul: np.ndarray       # linear maps, forward and backward
    attention: np.ndarray    # core of attention
    pointwise: np.ndarray    # norms, activations, residuals: memory-bound kernels
    recompute: np.ndarray    # everything done again
    host: np.ndarray         # waiting for kernels to be launched
    tensor: np.ndarray       # tensor-parallel communication
    expert: np.ndarray       # all-to-alls of experts
    context: np.ndarray      # context-parallel communication
    head: np.ndarray         # output head and loss
    bubble: np.ndarray       # waiting for the pipeline to fill and drain, and for its slowest stage
    pipeline: np.ndarray     # passing activations on
    data: np.ndarray         # exposed reduction of gradients, gathering of parameters
    optimizer: np.ndarray
    skew: np.ndarray         # waiting for the slowest rank

    @property
    def seconds(self) -> np.ndarray:
        """The whole step."""
        return np.add.reduce([getattr(self, cause) for cause in CAUSES])

    def at(self, index: int) -> dict[str, float]:
        """Seconds by cause of one layout."""
        return {f.name: float(getattr(self, f.name)[index]) for f in fields(self)}


def machine_of(cluster: ClusterSpec, precision: Precision, rates: Rates, stack: Software, dtype: str = "") -> Machine:
    """The device of a cluster as the layer model sees it; `dtype` if linear maps run in another format."""
    device, dtype = cluster.device, dtype or precision.dtype
    sixteen = "bf16" if "bf16" in device.peak_flops else "fp16"
    best = reachable(cluster, sixteen)
    fp8 = dtype in ("fp8", "fp4")
    matmul = reachable(cluster, dtype) * (rates.sustained_fp8 if fp8 else rates.sustained)
    return Machine(rates, matmul, best * rates.sustained, device.memory_bandwidth * rates.memory,
                   Wires.of(cluster, rates, stack.adapters), 1.0 if fp8 else 2.0, 4.0 if fp8 else 0.0)


def reachable(cluster: ClusterSpec, dtype: str) -> float:
    """Best matmul rate known for the format; for a format never measured, its peak times the share bf16 reaches."""
    device = cluster.device
    if dtype in device.reachable_flops:
        return device.reachable_flops[dtype]
    known = [d for d in ("bf16", "fp16") if d in device.reachable_flops]
    share = device.reachable_flops[known[0]] / device.peak(known[0]) if known else 0.85
    return device.peak(dtype) * share


def predict_steps(model: ModelSpec, cluster: ClusterSpec, grid: Grid, seq_len: int, precision: Precision,
                  rates: Rates, stack: Software, dtype: str = "") -> StepArrays:
    """Seconds by cause for every layout of `grid`. The plain version: every layout is computed in full.

    seq_len: tokens of a sequence. See `rates.rates_of` and `rates.software` for the constants.
    """
    machine = machine_of(cluster, precision, rates, stack, dtype)
    cut = Cut(grid.micro_batch, seq_len, grid.tensor, grid.sequence_parallel, grid.context, grid.expert)
    kinds = model.layer_kinds()
    passes = [_scaled(layer_costs(model, kind, cut, machine, stack), kinds.count(kind) / model.num_layers)
              for kind in dict.fromkeys(kinds)]
    forward, backward = _sum(p[0] for p in passes), _sum(p[1] for p in passes)
    head = head_seconds(model, cut, machine, stack)
    return combine(model, grid, forward, backward, head, machine, precision, stack, cut)


def _scaled(passes: tuple[Costs, Costs], share: float) -> tuple[Costs, Costs]:
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
    products = training_matmul_seconds(machine.rates, machine.attention, machine.bandwidth, tokens,
                                       model.vocab_size / t, model.hidden_size).sum(axis=0)
    loss = stack.logit_bytes * tokens * model.vocab_size / t / machine.bandwidth
    return products + loss + machine.wires.seconds("all_reduce", tokens * model.hidden_size * 2, t)


def combine(model: ModelSpec, grid: Grid, forward: Costs, backward: Costs, head: np.ndarray, machine: Machine,
            precision: Precision, stack: Software, cut: Cut) -> StepArrays:
    """From the costs of a layer and of the head to the whole step."""
    p, v, m = grid.pipeline, grid.virtual_stages, grid.accumulation
    layers = np.ceil(model.num_layers / (p * v)) * v          # on the fullest stage
    again = recompute_share(grid, forward, stack)
    gather, reduce = sharded_exposure(model, grid, forward, backward, machine, precision)
    layer = forward.seconds + backward.seconds + again + gather + reduce
    pass_on = pipeline_seconds(model, grid, cut, machine, stack)
    body = layers * layer
    last = (model.num_layers - (p - 1) * layers) * layer
    last = np.where(last > 0, last, 0) + head                 # the last stage may be the thinner one
    slowest = np.maximum(body, last)
    total = np.where(p > 1, model.num_layers * layer + head, slowest)
    bubble = (total - slowest) / v + m * (slowest - body) - np.where(p == 1, m * head, 0)
    busy = m * layers
    exposed, optimizer = once_per_step(model, grid, layers * (backward.seconds + again) / v, machine, precision, stack)
    causes = {"matmul": busy * (forward.matmul + backward.matmul),
              "attention": busy * (forward.attention + backward.attention),
              "pointwise": busy * (forward.pointwise + backward.pointwise),
              "recompute": busy * again, "host": busy * (_waits(forward) + _waits(backward)),
              "tensor": busy * (forward.tensor + backward.tensor),
              "expert": busy * (forward.expert + backward.expert),
              "context": busy * (forward.context + backward.context),
              "head": np.where(p == 1, m * head, 0), "bubble": bubble, "pipeline": m * pass_on,
              "data": busy * (gather + reduce) + exposed, "optimizer": optimizer}
    nodes = np.maximum(grid.world_size / machine.wires.per_node, 1)
    skew = machine.rates.skew * np.log2(nodes) * sum(causes.values())
    return StepArrays(**causes, skew=skew)


def _waits(costs: Costs) -> np.ndarray:
    return costs.seconds - costs.device - costs.tensor - costs.expert - costs.context


def recompute_share(grid: Grid, forward: Costs, stack: Software) -> np.ndarray:
    """Seconds of recomputation per layer: the forward again, or only its cheap-to-repeat part."""
    selective = forward.attention if stack.attention == "unfused" else forward.attention + forward.pointwise / 2
    again = np.where(grid.recompute == 2, forward.seconds, np.where(grid.recompute == 1, selective, 0.0))
    return again * grid.recompute_share


def layer_params(model: ModelSpec, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Parameters of an average layer on one rank before data-parallel sharding: plain ones, and experts."""
    experts = sum(x.params for kind in model.layer_kinds() for x in model.linears(kind) if x.copies > 1)
    plain = sum(sum(model.layer_params(kind).values()) for kind in model.layer_kinds()) - experts
    return plain / model.num_layers / grid.tensor, experts / model.num_layers / grid.expert


def sharded_exposure(model: ModelSpec, grid: Grid, forward: Costs, backward: Costs, machine: Machine,
                     precision: Precision) -> tuple[np.ndarray, np.ndarray]:
    """Per layer and micro-batch, what fully sharded parameters cost beyond what compute hides."""
    plain, experts = layer_params(model, grid)
    wires, stride = machine.wires, grid.tensor * grid.context
    wide = 2.0
    size = plain * wide
    gather = wires.seconds("all_gather", size, grid.shard, stride)
    scatter = wires.seconds("reduce_scatter", plain * max(precision.unsharded_grads, 2.0), grid.shard, stride)
    within = np.maximum(grid.shard * grid.tensor * grid.context // np.maximum(grid.expert, 1), 1)
    gather = gather + wires.seconds("all_gather", experts * wide, within, grid.expert)
    scatter = scatter + wires.seconds("reduce_scatter", experts * wide, within, grid.expert)
    hidden = machine.rates.contention
    ahead = np.maximum(gather - forward.seconds, 0) + hidden * np.minimum(gather, forward.seconds)
    back = np.maximum(gather + scatter - backward.seconds, 0) + hidden * np.minimum(gather + scatter, backward.seconds)
    sharded = (grid.zero == 3) & (grid.shard > 1)
    return np.where(sharded, ahead, 0.0), np.where(sharded, back, 0.0)


def pipeline_seconds(model: ModelSpec, grid: Grid, cut: Cut, machine: Machine, stack: Software) -> np.ndarray:
    """Per micro-batch, passing activations on and gradients back, v times each."""
    size = cut.tokens * model.hidden_size * 2 / np.where(grid.sequence_parallel, grid.tensor, 1)
    stride = grid.world_size // grid.pipeline
    rate = np.where(stride < machine.wires.per_node, machine.wires.link, machine.wires.network)
    once = machine.wires.link_seconds + size / rate
    keep = 0.2 if stack.overlap_pipeline else 1.0
    return np.where(grid.pipeline > 1, 2 * grid.virtual_stages * once * keep, 0.0)


def once_per_step(model: ModelSpec, grid: Grid, window: np.ndarray, machine: Machine, precision: Precision,
                  stack: Software) -> tuple[np.ndarray, np.ndarray]:
    """Exposed gradient reduction (and gathering of new parameters), and the optimizer's own time."""
    plain, experts = layer_params(model, grid)
    layers = np.ceil(model.num_layers / grid.pipeline)
    ends = model.vocab_size * model.hidden_size / grid.tensor \
        * np.where(grid.pipeline == 1, 1 if model.tied_embeddings else 2, 1)
    dense, expert = plain * layers + ends, experts * layers
    stride, data = grid.tensor, grid.data * grid.context
    wires = machine.wires
    width = stack.gradient_bytes
    halves = (width + np.where(grid.zero >= 1, 2.0, width)) / 2      # ZeRO gathers 2-byte parameters instead
    copies = np.maximum(data * grid.tensor // np.maximum(grid.expert, 1), 1)
    reduction = wires.seconds("all_reduce", dense * halves, data, stride) \
        + np.where(expert > 0, wires.seconds("all_reduce", expert * halves, copies, grid.expert), 0.0)
    tail = reduction / np.maximum(layers, 1) * 2
    hidden = np.maximum(reduction - window, tail) + machine.rates.contention * np.minimum(reduction, window)
    exposed = np.where(stack.overlap_gradients, hidden, reduction)
    # Fully sharded layers were reduced as they went; what is left is the replicas' all-reduce of hybrid sharding.
    outer = wires.seconds("all_reduce", (dense + expert) / grid.shard * width, grid.replicate, stride * grid.shard)
    exposed = np.where(grid.zero == 3, np.maximum(outer - window, outer / np.maximum(layers, 1)), exposed)
    owners = np.where(grid.zero >= 1, grid.shard, 1)
    optimizer = (dense + expert) / owners * stack.optimizer_bytes / machine.bandwidth
    return exposed, optimizer
