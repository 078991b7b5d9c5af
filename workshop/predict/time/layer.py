"""One layer, one micro-batch, one rank: how long forward and backward take, and why.

A layer is a list of linear maps (`ModelSpec.linears`), the core of attention, and kernels that only move
memory.

- **Linear maps** cost what their shape costs (`matmul`): tensor parallelism makes them thin, a small
  micro-batch short. Experts are a batch of products of the tokens that reach each.
- **Attention** runs at a rate that was measured for its kernel (`attention`).
- **Norms, activations, dropout, residuals** read and write [tokens, hidden] a dozen times. Tensor
  parallelism alone repeats those on every rank; sequence parallelism divides them (Korthikanti et al., arXiv
  2205.05198).
- **The host** must launch every kernel. If a layer's kernels take less time than launching them, it waits
  for Python.
- **Frozen weights** (LoRA, Hu et al. 2021, arXiv 2106.09685) have no weight gradient: a third of the
  products is not done. The adapter's own two are thin. Weights kept in 4 bits (QLoRA, Dettmers et al. 2023,
  arXiv 2305.14314) are unpacked before each use: a kernel that reads 4 bits and writes 16.
- **Communication inside the layer**: tensor parallelism all-reduces [tokens, hidden] twice forward and twice
  backward (Shoeybi et al., arXiv 1909.08053); experts exchange tokens with two all-to-alls each way; a
  context ring passes keys and values on while attention works, Ulysses trades heads for positions before it
  and back after it, and gathered keys are waited for.

Everything is an array over layouts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from workshop.facts.layout import CONTEXT_METHODS
from workshop.facts.model import Linear, ModelSpec
from workshop.facts.run import Adapter
from workshop.facts.stack import Software
from workshop.predict.case import Machine, Setting
from workshop.predict.layouts import Layouts
from workshop.predict.time.attention import (
    ROTARY_KERNELS,
    attention_seconds,
    rotary_bytes,
    turned_by_hand,
)
from workshop.predict.time.beside_experts import CLAMP_PASSES, bias_and_clamp_seconds, stash_seconds
from workshop.predict.time.matmul import LinearSeconds, linear_seconds
from workshop.predict.time.rates import Rates

Numbers = Any
RING = CONTEXT_METHODS.index("ring")
ALLTOALL_PASSES = 4.0
"""Reads and writes of a routed token to bring tokens into the order of ranks before an all-to-all, and out of
it after the one back."""
BIAS_KERNELS = 2.0
"""Of each expert whose second product has a bias: two forward, four backward; a third of them."""


@dataclass(frozen=True)
class Costs:
    """Seconds by cause of one pass; arrays over layouts."""

    matmul: np.ndarray
    attention: np.ndarray
    pointwise: np.ndarray
    host: np.ndarray
    tensor: np.ndarray
    expert: np.ndarray
    context: np.ndarray

    @property
    def device(self) -> np.ndarray:
        """Time of the kernels, without communication."""
        return self.matmul + self.attention + self.pointwise

    @property
    def seconds(self) -> np.ndarray:
        """The longer of the host's time and the device's with its communication."""
        return np.maximum(self.host, self.device + self.tensor + self.expert + self.context)

    def launched_one_by_one(self) -> Costs:
        """Where the host launches a kernel when the one before has ended: its time adds to the device's."""
        return replace(self, host=self.host + self.device + self.tensor + self.expert + self.context)

    def plus(self, other: Costs, share: Numbers = 1.0) -> Costs:
        """The sum of two passes, the second taken `share` times."""
        return Costs(*(getattr(self, f.name) + share * getattr(other, f.name) for f in fields(self)))


def merged(linears: tuple[Linear, ...]) -> list[Linear]:
    """Linear maps that libraries run as one product: q, k, v; gate and up."""
    result: list[Linear] = []
    for linear in linears:
        last = result[-1] if result else None
        joins = (last is not None and linear.name in ("k", "v")) or (
            linear.name.endswith("up") and last is not None and last.name.endswith("gate")
        )
        if joins and last is not None and last.inputs == linear.inputs and last.copies == linear.copies:
            result[-1] = last._replace(
                name=last.name + "+" + linear.name, outputs=last.outputs + linear.outputs
            )
        else:
            result.append(linear)
    return result


@cache
def layer_linears(model: ModelSpec, kind: str) -> list[Linear]:
    """The products of one layer as libraries run them."""
    return merged(model.linears(kind))


@cache
def kind_shares(model: ModelSpec) -> tuple[tuple[str, float], ...]:
    """The kinds of a model's layers, and the share of its layers that each is."""
    kinds = model.layer_kinds()
    return tuple((kind, kinds.count(kind) / len(kinds)) for kind in dict.fromkeys(kinds))


@cache
def mean_layer_params(model: ModelSpec) -> tuple[float, float]:
    """Parameters of an average layer: all but experts, and experts."""
    kinds = model.layer_kinds()
    experts = sum(x.params for kind in kinds for x in model.linears(kind) if x.copies > 1)
    plain = sum(sum(model.layer_params(kind).values()) for kind in kinds) - experts
    return plain / len(kinds), experts / len(kinds)


class LayerPasses(NamedTuple):
    """Forward and backward (without recomputation) of a layer, and the part of backward that is weight
    gradients.
    """

    forward: Costs
    backward: Costs
    weight: np.ndarray


def layer_costs(setting: Setting, kind: str, layouts: Layouts) -> LayerPasses:
    """What one layer of the given kind costs."""
    model, machine, stack, adapter = setting.model, setting.machine, setting.stack, setting.adapter
    linears = layer_linears(model, kind)
    products = linear_seconds(linears, layouts, machine, stack.fused_experts)
    attention = attention_seconds(setting, layouts)
    pointwise = _pointwise_seconds(model, linears, kind, layouts, machine, stack)
    host = host_seconds(model, kind, layouts, machine, stack)
    summed, gathered, expert, context = _communication(model, kind, layouts, machine, stack)
    expert = expert * _exchange_exposure(machine.rates, stack)
    context = _context_exposure(context, attention, layouts)
    if adapter is not None:
        own, moved, kernels = _adapter_seconds(model, kind, layouts, machine, adapter)
        products = products.frozen().plus(own)
        pointwise = pointwise + moved
        host = host + (not stack.captured) * kernels * machine.rates.host_seconds
    ahead, late = _tensor_exposure((summed, gathered), products, layouts, machine, stack)
    zero = np.zeros(
        np.broadcast_shapes(*(np.shape(x) for x in (products.forward, attention[0], pointwise, summed)))
    )
    once = (products.forward, attention[0], pointwise, host, ahead, expert, context[0])
    back = (products.backward + products.weight, attention[1], 2 * pointwise, 2 * host, late, expert)
    forward = Costs(*(seconds + zero for seconds in once))
    backward = Costs(*(seconds + zero for seconds in (*back, context[1])))
    if stack.blocking_launches:
        forward, backward = forward.launched_one_by_one(), backward.launched_one_by_one()
    return LayerPasses(forward, backward, products.weight + zero)


def host_seconds(
    model: ModelSpec, kind: str, layouts: Layouts, machine: Machine, stack: Software
) -> np.ndarray:
    """Time to launch one layer's forward. The ranks of a tensor group wait for the slowest of their hosts.

    A graph of the layer is launched at once. How many tokens reach an expert is known only when they do, so
    graphs of experts came late; until then, each local expert has kernels of its own to launch. In 8 bits a
    layer's linear maps, experts among them, take the host longer: casts, scales, and who keeps them.
    """
    rates = machine.rates
    longer = np.where(machine.cast_bytes > 0, stack.host_in_8_bits, 1.0)
    each_layer = longer * stack.kernels + ROTARY_KERNELS * turned_by_hand(model, stack)
    kernels = 0.0 * np.asarray(layouts.tensor) + (0 if stack.captured else each_layer)
    if kind == "moe" and not stack.captured_experts:
        each = longer * stack.kernels_per_expert + BIAS_KERNELS * model.mlp_bias
        kernels = kernels + stack.expert_kernels + each * model.num_experts / np.asarray(layouts.expert)
    return kernels * rates.host_seconds * (1 + rates.host_jitter * (np.asarray(layouts.tensor) - 1))


def _adapter_seconds(
    model: ModelSpec, kind: str, layouts: Layouts, machine: Machine, adapter: Adapter
) -> tuple[LinearSeconds, Any, int]:
    """Seconds of an adapter's own products and of the kernels around them, forward, and how many kernels.

    LoRA adds x A B to the result of each target; adapter-v2 multiplies the result of every map by a vector
    and adds one. Weights in fewer than 16 bits are unpacked.
    """
    t, e, et = np.asarray(layouts.tensor), np.asarray(layouts.expert), np.asarray(layouts.expert_tensor)
    linears = model.linears(kind)
    targets = adapter.targeted(model, kind) if adapter.method == "lora" else linears
    width = machine.activation_bytes
    moved: Any = sum(
        layouts.tokens * 2 * width * x.outputs * x.active / (t if x.split == "column" else 1) for x in targets
    )
    if adapter.base_bits < 16:
        weights = sum(x.copies * x.weights / (e * et if x.copies > 1 else t) for x in linears)
        moved = moved + weights * (adapter.base_bits / 8 + width)
    if adapter.method != "lora":
        nothing = np.zeros_like(layouts.tokens)
        return LinearSeconds(nothing, nothing, nothing, nothing), moved / machine.bandwidth, 2 * len(targets)
    thin = []
    for x in targets:
        down, up = ("none", "column") if x.split == "column" else (x.split, "none")
        thin.append(x._replace(outputs=adapter.rank, split=down))
        thin.append(x._replace(inputs=adapter.rank, split=up))
    return linear_seconds(thin, layouts, machine), moved / machine.bandwidth, 3 * len(targets)


def _tensor_exposure(
    moved: tuple[Any, Any], products: LinearSeconds, layouts: Layouts, machine: Machine, stack: Software
) -> tuple[Any, Any]:
    """What a layer waits for its tensor-parallel collectives, forward and backward.

    moved: seconds of summing the ranks' results, and of gathering tokens where activations are cut along the
    sequence. Backward the gradients of the inputs of column-parallel maps are summed. The gradients of those
    maps' weights do not need the sum, so a stack can work on them meanwhile. Gradients of the results of
    row-parallel maps are gathered first, and waited for (github NVIDIA/TransformerEngine
    transformer_engine/pytorch/module/linear.py: the backward pass of `_Linear`, `grad_output_preprocess`).
    A stack can also multiply what a rank has already, one of t shares, until the others' tokens are there: of
    a column-parallel map forward, of a row-parallel one backward. What hides still takes its toll
    (`contention`).
    """
    keep, (summed, gathered) = 1 - stack.overlap_tensor, moved
    tensor = summed + gathered
    if not stack.overlap_input_gradient:
        return tensor * keep, tensor * keep
    t = np.asarray(layouts.tensor)
    worth = 1 - machine.rates.contention * machine.wires.load(t, 1)
    late = tensor - worth * np.minimum(summed, products.columns)
    if not stack.overlap_shard:
        return tensor * keep, late
    rows = products.weight - products.columns
    ahead = tensor - worth * np.minimum(gathered, products.columns / t)
    late = late - worth * np.minimum(gathered, rows / t)
    return np.where(layouts.sequence_parallel, ahead, tensor * keep), late


def _exchange_exposure(rates: Rates, stack: Software) -> float:
    """What share of the exchange between experts is waited for, or slows down what it hides under.

    A stack that merges one micro-batch's forward with another's backward hides most of it; meanwhile its
    kernels keep a part of the multiprocessors (Megatron-Core's report, arXiv 2603.07685, section 4.2.3).
    """
    taken = min(stack.dispatch_multiprocessors / rates.multiprocessors, 1.0)
    return 1 - stack.overlap_expert * (1 - taken)


def _context_exposure(
    moved: tuple[Any, Any], attention: tuple[Any, Any], layouts: Layouts
) -> tuple[Any, Any]:
    """What attention waits for the other context ranks, forward and backward.

    A ring passes the next keys on while attention works on the last ones: only the surplus is waited for.
    What is gathered or traded must be there before.
    """
    hidden = layouts.context_method == RING
    ahead, back = (
        np.maximum(seconds - hidden * core, 0.0) for seconds, core in zip(moved, attention, strict=True)
    )
    return ahead, back


def _pointwise_seconds(
    model: ModelSpec, linears: list[Linear], kind: str, layouts: Layouts, machine: Machine, stack: Software
) -> np.ndarray:
    """Kernels that only move memory: as often as the stack's source has them, for experts as was measured.

    What was measured of experts (`facts/data/grouped_gemm.csv`) holds their activation as well, and that
    tokens are brought into the order of experts, and back. Products that are fused with their activation read
    what a dispatcher wrote in that order, so that none of it is left (arXiv 2603.07685, section 4.3.2); an
    all-to-all wants tokens in the order of ranks before (section 4.3.3).
    """
    t, tokens = np.asarray(layouts.tensor, float), layouts.tokens
    whole = stack.hidden_passes * model.hidden_size * model.norms_per_layer / 2
    alone = np.where(np.asarray(layouts.sequence_parallel), t, 1.0)
    plain = [x for x in linears if x.split == "column" and x.copies == 1]
    divided = sum(stack.width_passes * x.outputs * x.active for x in plain)
    moved = tokens * machine.activation_bytes * (whole / alone + divided / t)
    moved = moved + tokens * rotary_bytes(model, stack, machine.activation_bytes) / t
    seconds = moved / machine.bandwidth + 6 * machine.rates.kernel_seconds
    if kind != "moe":
        return seconds
    rates = machine.rates
    each = 0.0 if stack.fused_experts else rates.routed_passes
    if stack.dispatcher == "alltoall":
        each = each + ALLTOALL_PASSES
    passes = each * model.experts_per_token + rates.token_passes
    routed = tokens / t * machine.activation_bytes * passes * model.hidden_size
    seconds = seconds + routed / machine.memory_bandwidth + rates.route_seconds
    if (model.mlp_bias or model.clamped_experts) and not stack.fused_experts:
        seconds = seconds + bias_and_clamp_seconds(model, linears, tokens / t, machine, stack)
    if stack.stashed_experts:
        seconds = seconds + stash_seconds(model, linears, tokens / t, machine)
    return seconds


def _communication(
    model: ModelSpec, kind: str, layouts: Layouts, machine: Machine, stack: Software
) -> tuple[Any, Any, Any, Any]:
    """Seconds of summing and of gathering over tensor ranks, of one direction of the exchange between
    experts, and of what context ranks send forward and backward.
    """
    t, c, e = np.asarray(layouts.tensor), np.asarray(layouts.context), np.asarray(layouts.expert)
    et = np.asarray(layouts.expert_tensor)
    tokens, wires, width = layouts.tokens, machine.wires, machine.activation_bytes
    hidden = tokens * model.hidden_size * width
    halves = 1 if kind == "moe" else 2  # only the attention half of a mixture layer is tensor-parallel
    summed, gathered = (halves * x for x in wires.summed_seconds(hidden, t, layouts.sequence_parallel))
    if kind == "moe":
        gathered = gathered + wires.seconds("all_gather", hidden, t)
        # Ranks that share an expert show each other their tokens, and sum their parts of the result.
        shared = hidden / t * model.experts_per_token * et
        gathered = gathered + 2 * wires.seconds("all_gather", shared, et)
        token = model.hidden_size * width
        copies, how = model.experts_per_token, stack.dispatcher
        expert = 2 * wires.dispatch_seconds(tokens / t, token, copies, e, how)
    else:
        expert = np.zeros_like(summed)
    keys = tokens / t * (model.kv_width + model.v_width) * width
    around = wires.seconds("all_gather", keys * c, c, t)
    trades = layouts.context_by("ulysses")
    if not trades.any():
        return summed, gathered, expert, (around, 2 * around)
    # Queries, keys and values there, and what attention made of them back; gradients the same way.
    heads = tokens / t * (model.q_width + model.attention_width) * width + keys * np.maximum(
        1, c * t / (model.num_heads if model.is_mla else model.num_kv_heads)
    )
    trade = wires.seconds("all_to_all", heads, c, t)
    back = np.where(trades, trade, 2 * around)
    return summed, gathered, expert, (np.where(trades, trade, around), back)


# Selective recomputation (`facts.layout.RECOMPUTE_MODULES`): what the memory model drops by a module's name
# (`saved.Saved.module`) is made again. "ops" is PyTorch's checkpointing by operation as torchtitan sets it:
# attention and every second product are kept, all else is repeated.
MAPS_AGAIN = {
    "mlp": ("gate", "up", "down"),
    "mlp_up": ("gate", "up"),
    "moe": ("router", "expert_gate", "expert_up", "expert_down", "shared_gate", "shared_up", "shared_down"),
    "shared_experts": ("shared_gate", "shared_up", "shared_down", "shared_expert_gate"),
    "router": ("router",),
    "qkv": ("q", "k", "v", "q_up", "kv_up"),
    "mla_up_proj": ("q_up", "kv_up"),
    "attention_out": ("attention_out",),
    "latent": ("q_down", "kv_down"),
}
"""Linear maps that a module repeats."""
HIDDEN_AGAIN = {"layernorm": 2.0, "norm_input": 3.0, "dropout": 2.0}
"""Reads and writes of [tokens, hidden], for each of a layer's norms."""
WIDE_AGAIN = {"up": ("mlp", "mlp_act"), "expert_up": ("moe", "moe_act"), "shared_up": ("shared_experts",)}
"""The maps whose output the nonlinearities of these modules read (twice, where it is gated) and write."""


def selective_seconds(setting: Setting, layouts: Layouts, forward: Costs) -> np.ndarray:
    """Seconds per average layer that the setting's modules take again.

    Without modules, what the stack usually repeats: the core of attention where it keeps the scores; else
    attention and half of what only moves memory.
    """
    modules = setting.recompute_modules
    if not modules:
        usual = 0.0 if setting.stack.attention == "unfused" else forward.pointwise / 2
        return forward.attention + usual
    kinds = kind_shares(setting.model)
    return np.asarray(
        sum(share * _repeated(setting, layouts, forward, kind, modules) for kind, share in kinds)
    )


def _repeated(setting: Setting, layouts: Layouts, forward: Costs, kind: str, modules: tuple[str, ...]) -> Any:
    model, machine = setting.model, setting.machine
    linears = model.linears(kind)
    if "ops" in modules:
        return linear_seconds(list(linears[1::2]), layouts, machine).forward + forward.pointwise
    names = {name for module in modules for name in MAPS_AGAIN.get(module, ())}
    again = [x for x in linears if x.name in names]
    seconds = linear_seconds(again, layouts, machine).forward if again else 0.0 * forward.matmul
    seconds = seconds + ("core_attn" in modules) * forward.attention
    seconds = seconds + ("moe" in modules and kind == "moe") * forward.expert
    seconds = seconds + ("mlp" in modules and kind == "dense") * forward.tensor / 2
    t = np.asarray(layouts.tensor, float)
    passes = sum(HIDDEN_AGAIN.get(module, 0.0) for module in modules)
    passes = passes * model.norms_per_layer * model.hidden_size
    elements = passes / np.where(np.asarray(layouts.sequence_parallel), t, 1.0)
    gates = (3 if model.gated_mlp else 2) + 2 * CLAMP_PASSES[0] * model.clamped_experts
    for name, makers in WIDE_AGAIN.items():
        wide = sum(x.outputs * x.active for x in linears if x.name == name)
        elements = elements + gates * wide * sum(module in makers for module in modules) / t
    return seconds + layouts.tokens * machine.activation_bytes * elements / machine.bandwidth
