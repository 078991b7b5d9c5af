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

`predict_steps` answers for many layouts with `StepArrays`: seconds by cause, which sum to the whole.
`predict_step` answers for one run:

================================================  ===================================================
MFU = model FLOPs / (seconds * ranks * peak)      what the mathematics needs (arXiv 2204.02311, appendix B)
HFU = hardware FLOPs / (seconds * ranks * peak)   recomputation counted as well
================================================  ===================================================

The interval goes from p10 to p90 of what would be measured: eight in ten measurements of published rows
whose source was left out lie within theirs (`workshop.predict.interval`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from workshop.facts.layout import RECOMPUTE
from workshop.facts.model import ModelSpec
from workshop.facts.precision import precision
from workshop.facts.run import Run
from workshop.facts.stack import Software, software
from workshop.facts.tabular import preformatted
from workshop.facts.units import format_seconds
from workshop.predict.case import Setting, setting_of
from workshop.predict.flops import StepFlops, step_flops
from workshop.predict.interval import Interval, time_interval
from workshop.predict.layouts import Layouts
from workshop.predict.pipeline.closed import Head, stages
from workshop.predict.time.exposure import (
    offload_exposure,
    once_per_step,
    pipeline_seconds,
    sharded_exposure,
    trained_layer_params,
)
from workshop.predict.time.layer import (
    Costs,
    LayerPasses,
    kind_shares,
    layer_costs,
    layer_linears,
    selective_seconds,
)
from workshop.predict.time.matmul import Product, training_matmul_seconds

SELECTIVE, FULL = RECOMPUTE.index("selective"), RECOMPUTE.index("full")
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


def predict_steps(setting: Setting, layouts: Layouts) -> StepArrays:
    """Seconds by cause for every layout of `layouts`. The plain version: every layout is computed in full."""
    return combine(setting, layouts, layer_and_head(setting, layouts, selects(layouts)))


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


def selects(layouts: Layouts) -> bool:
    """Whether any of the layouts recomputes selectively."""
    return bool((layouts.recompute == SELECTIVE).any())


def layer_and_head(setting: Setting, layouts: Layouts, selective: bool) -> Passes:
    """What one micro-batch costs in a layer and in the head.

    selective: also what selective recomputation repeats, which stays 0 where nobody asks for it.
    """
    forward, backward, weight = layer_passes(setting, layouts)
    again = selective_seconds(setting, layouts, forward) if selective else np.zeros_like(weight)
    return Passes(forward, backward, weight, again, head_seconds(setting, layouts))


def layer_passes(setting: Setting, layouts: Layouts) -> LayerPasses:
    """Forward and backward of an average layer: dense and mixture layers by their share."""
    shares = kind_shares(setting.model)
    passes = [layer_costs(setting, kind, layouts) for kind, _ in shares]
    if len(passes) == 1:
        return passes[0]
    nothing = Costs(*(np.zeros_like(passes[0].weight) for _ in fields(Costs)))
    forward = backward = nothing
    for costs, (_, share) in zip(passes, shares, strict=True):
        forward, backward = forward.plus(costs.forward, share), backward.plus(costs.backward, share)
    weight = sum(costs.weight * share for costs, (_, share) in zip(passes, shares, strict=True))
    return LayerPasses(forward, backward, np.asarray(weight))


def head_seconds(setting: Setting, layouts: Layouts) -> Head:
    """Output head and loss of one micro-batch on the last stage; a frozen head has no weight gradient.

    In 8 bits the hidden states are quantized forward, the logits' gradient backward.
    """
    model, machine = setting.model, setting.machine
    t, tokens = np.asarray(layouts.tensor), layouts.tokens
    columns = model.padded_vocab(setting.vocab_multiple, t) / t
    product = Product(tokens, columns, model.hidden_size)
    width = machine.activation_bytes
    eight = setting.stack.head_bits == 8 and machine.element_bytes < width
    rate, each = (machine.matmul, machine.element_bytes) if eight else (machine.attention, width)
    products = training_matmul_seconds(machine.rates, rate, machine.feed, product, each)
    cast = eight * machine.cast_bytes * tokens / machine.bandwidth
    loss = setting.stack.logit_bytes * tokens * columns / machine.bandwidth
    reduced = machine.wires.seconds("all_reduce", tokens * model.hidden_size * width, t)
    weight = products[2] * (setting.adapter is None)
    forward = products[0] + loss / 2 + cast * model.hidden_size
    backward = products[1] + weight + loss / 2 + reduced + cast * columns
    return Head(forward, backward, weight)


def combine(setting: Setting, layouts: Layouts, passes: Passes) -> StepArrays:
    """From the costs of a layer and of the head to the whole step."""
    model, machine, stack = setting.model, setting.machine, setting.stack
    forward, backward, head = passes.forward, passes.backward, passes.head
    p, m = layouts.pipeline, layouts.accumulation
    again = recompute_seconds(model, layouts, passes, stack)
    ahead, back = sharded_exposure(setting, layouts, (forward, backward))
    moved = offload_exposure(setting, layouts, (forward, backward))
    sharded = ahead + back
    trained = trained_layer_params(setting, layouts).sum
    accumulate = trained * stack.accumulate_bytes / machine.bandwidth
    layer = Head(forward.seconds + ahead, backward.seconds + again + back + accumulate + moved, passes.weight)
    if more := model.num_mtp_layers:  # each predicts one token further: a layer and the head again
        head = Head(*((1 + more) * seconds + more * each for seconds, each in zip(head, layer, strict=True)))
    filled = stages(model, layouts, layer, head, balanced=stack.balanced_stages)
    layers = filled.layers
    busy = m * layers
    windows = (layers * forward.seconds, layers * (backward.seconds + again))
    once = once_per_step(setting, layouts, windows)
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
        "pipeline": m * pipeline_seconds(setting, layouts, filled.chunks, windows),
        "data": busy * sharded + once.data,
        "optimizer": once.optimizer,
        "offload": busy * moved + once.offload,
    }
    nodes = np.maximum(layouts.world_size / machine.wires.per_node, 1)
    skew = machine.rates.skew * np.log2(nodes) * sum(causes.values())
    return StepArrays(**causes, skew=skew)


def _waits(costs: Costs) -> np.ndarray:
    return costs.seconds - costs.device - costs.tensor - costs.expert - costs.context


def recompute_seconds(model: ModelSpec, layouts: Layouts, passes: Passes, stack: Software) -> np.ndarray:
    """Seconds of recomputation per layer: the forward again, or only the part that is cheap to repeat.

    PyTorch's checkpoint (use_reentrant=False) stops as soon as everything that was saved is there again, and
    the result of the MLP's last product never was: with h -> 4h -> h that is a third of the layer's products.
    """
    forward = passes.forward
    full = forward.seconds
    if stack.early_stop:
        weights = [x.weights * x.active for x in layer_linears(model, kind_shares(model)[-1][0])]
        full = full - forward.matmul * weights[-1] / sum(weights) - forward.tensor / 2
    again = np.where(
        layouts.recompute == FULL, full, np.where(layouts.recompute == SELECTIVE, passes.selective, 0.0)
    )
    return again * layouts.recompute_share


@dataclass(frozen=True, repr=False)
class StepPrediction:
    """A step of one run. `causes` are seconds and sum to `seconds`; `interval` is p10 to p90 of them.

    stack: the training stack that it was taken for.
    """

    seconds: float
    causes: dict[str, float]
    run: Run
    stack: str

    @property
    def tokens(self) -> int:
        """Of all ranks together, in a step."""
        return self.run.tokens_per_step

    @property
    def ranks(self) -> int:
        """Ranks in all."""
        return self.run.layout.world_size

    @cached_property
    def flops(self) -> StepFlops:
        """Of all ranks together, in a step."""
        return step_flops(self.run)

    @property
    def peak_flops(self) -> float:
        """Of one device, in the format of the run's linear maps."""
        return self.run.cluster.device.peak(precision(self.run.layout.precision).dtype)

    @cached_property
    def interval(self) -> Interval:
        """Seconds between which eight in ten measurements lie (`workshop.predict.interval`)."""
        return time_interval(self.run, self.stack, self.seconds)

    @property
    def low(self) -> float:
        """p10 of the seconds."""
        return self.interval.lower

    @property
    def high(self) -> float:
        """p90 of the seconds."""
        return self.interval.upper

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks together."""
        return self.tokens / self.seconds

    @property
    def tflops_per_rank(self) -> float:
        """Model TFLOP/s of one rank."""
        return self.flops.model / self.seconds / self.ranks / 1e12

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization, 0 to 1."""
        return self.flops.model / self.seconds / self.ranks / self.peak_flops

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilization, 0 to 1."""
        return self.flops.hardware / self.seconds / self.ranks / self.peak_flops

    @property
    def limit(self) -> str:
        """What takes most of the step besides arithmetic, in words."""
        return limit_of(self.causes)

    def __str__(self) -> str:
        rows = sorted(((v, k) for k, v in self.causes.items() if v > 0.001 * self.seconds), reverse=True)
        text = (
            f"{format_seconds(self.seconds)} a step "
            f"({format_seconds(self.low)} to {format_seconds(self.high)} in 8 of 10 cases), "
            f"{self.tokens_per_second:,.0f} tokens/s, {self.tflops_per_rank:,.0f} TFLOP/s per rank, "
            f"MFU {self.mfu:.1%}, HFU {self.hfu:.1%}"
        )
        return text + "".join(
            f"\n  {cause:<10} {value / self.seconds:6.1%}  {format_seconds(value)}" for value, cause in rows
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return preformatted(str(self))


_WORDS = {
    "pointwise": "memory bandwidth (norms, activations, residuals)",
    "recompute": "recomputation",
    "host": "launching kernels: the pieces are too small",
    "tensor": "tensor-parallel communication",
    "expert": "exchanging tokens between experts",
    "context": "context-parallel communication",
    "head": "the output head and its loss",
    "bubble": "the pipeline's bubble and its slowest stage",
    "pipeline": "passing activations between stages",
    "data": "data-parallel communication that nothing hides",
    "optimizer": "the optimizer's step",
    "offload": "the link to the host",
    "skew": "waiting for the slowest rank",
    "attention": "attention",
    "islands": "the slow link between islands",
}


def limit_of(causes: dict[str, float]) -> str:
    """What takes most of a step besides the matrix products, with its share."""
    total = sum(causes.values())
    cause = max((c for c in causes if c != "matmul"), key=lambda c: causes[c])
    return f"{_WORDS[cause]}: {causes[cause] / total:.0%} of the step"


def predict_step(run: Run, stack: str | Software = "") -> StepPrediction:
    """Time of one optimizer step of `run`.

    stack: a training stack of `facts.stack`, or one of your own; by default what the run's
    implementation is.

    Raises:
        NotPredictable: something about the run that the time model does not have.
        ValueError: the device has no constants, or the cluster no links.
    """
    setting = setting_of(run, software(stack) if isinstance(stack, str) and stack else stack or None)
    arrays = predict_steps(setting, Layouts.of_runs([run]))
    seconds = float(arrays.seconds[0])
    return StepPrediction(seconds, arrays.at(0), run, setting.stack.name)
