"""One layer, one micro-batch, one rank: how long forward and backward take, and why.

A layer is a list of linear maps (`ModelSpec.linears`), the core of attention, and kernels that only move
memory.

- **Linear maps** cost what their shape costs (`gemm`): tensor parallelism makes them thin, a small
  micro-batch short. Experts are a batch of products of the tokens that reach each.
- **Attention** is two products per head. *Flash* kernels keep the scores on chip (Dao et al., arXiv
  2205.14135) and run at a share of the matmul rate; a causal mask halves them. *Unfused* attention writes
  and reads s x s scores per head a dozen times, and that, not arithmetic, is what it costs.
- **Norms, activations, dropout, residuals** read and write [tokens, hidden] a dozen times. Tensor
  parallelism alone repeats those on every rank; sequence parallelism divides them (Korthikanti et al., arXiv
  2205.05198).
- **The host** must launch every kernel. If a layer's kernels take less time than launching them, it waits
  for Python.
- **Communication inside the layer**: tensor parallelism all-reduces [tokens, hidden] twice forward and twice
  backward (Shoeybi et al., arXiv 1909.08053); experts exchange tokens with two all-to-alls each way; a
  context ring passes keys and values on.

Everything is an array over layouts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from workshop.facts.model import Linear, ModelSpec
from workshop.predict.collectives import Wires
from workshop.predict.gemm import Product, matmul_seconds, training_matmul_seconds
from workshop.predict.rates import Rates, Software

Numbers = Any
# Rates of fused attention relative to the second generation's: on A100 it was twice as fast as the first
# (Dao, arXiv 2307.08691, figures 4 to 6), on Hopper the third and cuDNN's are 1.5 to 2 times as fast (Shah
# et al., arXiv 2407.08608).
FLASH = {"flash-1": 0.5, "flash-2": 1.0, "flash-3": 1.75}

# Reads and writes of the s x s scores besides the products themselves, forward and backward. Softmax reads
# and writes (backward: reads two, writes one); dropout reads, writes, and keeps a mask of half the width.
SOFTMAX_PASSES = (2.0, 3.0)
DROPOUT_PASSES = (2.5, 2.5)


@dataclass(frozen=True)
class Machine:
    """A device as the layer sees it: reachable FLOP/s, bytes/s, and the wires."""

    rates: Rates
    matmul: float  # reachable FLOP/s of linear maps, in the run's format
    attention: float  # reachable FLOP/s in 16 bits, of which fused attention gets a share
    bandwidth: float  # bytes/s of pointwise kernels
    wires: Wires
    element_bytes: float = 2.0
    cast_bytes: float = (
        0.0  # moved per element to quantize an input (FP8: read 2, write 1, and its transpose)
    )


@dataclass(frozen=True)
class Cut:
    """How a layer is cut: arrays over layouts (or numbers)."""

    micro_batch: Numbers
    seq_len: Numbers
    tensor: Numbers = 1
    sequence_parallel: Numbers = False
    context: Numbers = 1
    expert: Numbers = 1

    @property
    def tokens(self) -> np.ndarray:
        """Tokens of one micro-batch on one rank, before sequence parallelism."""
        return np.asarray(self.micro_batch) * self.seq_len / np.asarray(self.context)


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


def layer_costs(
    model: ModelSpec, kind: str, cut: Cut, machine: Machine, stack: Software
) -> tuple[Costs, Costs]:
    """Forward and backward (without recomputation) of one layer of the given kind."""
    linears = layer_linears(model, kind)
    *matmul, weights = _linear_seconds(linears, cut, machine)
    attention = _attention_seconds(model, cut, machine, stack)
    pointwise = _pointwise_seconds(model, linears, kind, cut, machine, stack)
    host = host_seconds(model, kind, cut, machine.rates, stack)
    tensor, expert, context = _communication(model, kind, cut, machine)
    # A context ring passes the next keys on while attention works on the last ones: only the surplus is
    # waited for.
    context = tuple(np.maximum(ring - core, 0.0) for ring, core in zip(context, attention, strict=True))
    late = _backward_exposure(tensor, weights, cut, machine, stack)
    zero = np.zeros(np.broadcast_shapes(*(np.shape(x) for x in (matmul[0], attention[0], pointwise, tensor))))
    keep = 1 - stack.overlap_tensor
    forward = Costs(
        matmul[0] + zero,
        attention[0] + zero,
        pointwise + zero,
        host + zero,
        tensor * keep + zero,
        expert * (1 - stack.overlap_expert) + zero,
        context[0] + zero,
    )
    backward = Costs(
        matmul[1] + zero,
        attention[1] + zero,
        2 * pointwise + zero,
        2 * host + zero,
        late + zero,
        expert * (1 - stack.overlap_expert) + zero,
        context[1] + zero,
    )
    return forward, backward


def host_seconds(model: ModelSpec, kind: str, cut: Cut, rates: Rates, stack: Software) -> np.ndarray:
    """Time to launch one layer's forward. The ranks of a tensor group wait for the slowest of their hosts.

    A graph of the layer is launched at once. How many tokens reach an expert is known only when they do, so
    graphs of experts came late; until then, each local expert has kernels of its own to launch.
    """
    kernels = 0.0 * np.asarray(cut.tensor) + (0 if stack.captured else stack.kernels)
    if kind == "moe" and not stack.captured_experts:
        kernels = (
            kernels
            + stack.expert_kernels
            + stack.kernels_per_expert * model.num_experts / np.asarray(cut.expert)
        )
    return kernels * rates.host_seconds * (1 + rates.host_jitter * (np.asarray(cut.tensor) - 1))


def _linear_seconds(linears: list[Linear], cut: Cut, machine: Machine) -> tuple[Any, Any, Any]:
    """Forward, backward, and of the backward the weight gradients of column-parallel maps."""
    t = np.asarray(cut.tensor)
    tokens = cut.tokens
    stacked = np.empty((4, len(linears), *np.broadcast_shapes(t.shape, tokens.shape, np.shape(cut.expert))))
    rows, cols, depth, batch = stacked
    for i, linear in enumerate(linears):
        expert = linear.copies > 1
        local = linear.copies / np.asarray(cut.expert) if expert else 1.0
        # Experts are not cut by tensor parallelism here (expert_tensor = 1): each of the t ranks routes its
        # 1/t of the tokens, and receives as many of others.
        rows[i] = tokens / t * linear.active / local if expert else tokens
        cols[i] = linear.outputs / t if linear.split == "column" and not expert else linear.outputs
        depth[i] = linear.inputs / t if linear.split == "row" and not expert else linear.inputs
        batch[i] = local
    seconds = training_matmul_seconds(
        machine.rates, machine.matmul, machine.bandwidth, Product(*stacked), machine.element_bytes
    )
    columns = seconds[2][[linear.split == "column" and linear.copies == 1 for linear in linears]].sum(axis=0)
    seconds = seconds.sum(axis=1)
    cast = (
        machine.cast_bytes
        * (stacked[0] * stacked[3] * (stacked[1] + stacked[2])).sum(axis=0)
        / machine.bandwidth
    )
    return seconds[0] + cast / 2, seconds[1] + seconds[2] + cast, columns


def _backward_exposure(
    tensor: np.ndarray, weights: np.ndarray, cut: Cut, machine: Machine, stack: Software
) -> np.ndarray:
    """What a layer's backward waits for its tensor-parallel all-reduces.

    They sum the gradients of the inputs of column-parallel maps. The gradients of those maps' weights do not
    need the sum, so a stack can work on them meanwhile; what hides still takes its toll (`contention`).
    """
    if not stack.overlap_input_gradient:
        return tensor * (1 - stack.overlap_tensor)
    hidden = np.minimum(tensor, weights)
    load = machine.wires.load(np.asarray(cut.tensor), 1)
    return tensor - hidden * (1 - machine.rates.contention * load)


def _attention_seconds(model: ModelSpec, cut: Cut, machine: Machine, stack: Software) -> tuple[Any, Any]:
    b, s, c, t = (np.asarray(x, float) for x in (cut.micro_batch, cut.seq_len, cut.context, cut.tensor))
    heads = model.num_heads / t
    d_qk, d_v = model.q_width / model.num_heads, model.attention_width / model.num_heads
    rates = machine.rates
    if stack.attention in FLASH:
        # Narrow heads leave less arithmetic per exponential: 64 reaches five sixths of what 128 does.
        rate = machine.attention * FLASH[stack.attention] * 1.25 * d_v / (d_v + 32)
        flops = 2 * b * (s / c) * s * heads * (d_qk + d_v) * (0.5 if model.causal else 1.0)
        blocks = b * heads * np.maximum(s / c / 128, 1)
        # Few heads and short sequences leave multiprocessors without a block to work on.
        full = np.ceil(blocks / rates.multiprocessors) * rates.multiprocessors / blocks
        forward = flops * full / (rate * rates.flash) + rates.kernel_seconds
        return forward, 2.5 * flops * full / (rate * rates.flash_backward) + 3 * rates.kernel_seconds
    batch = b * heads
    products = (Product(s / c, s, d_qk, batch), Product(s / c, d_v, s, batch))
    forward = sum(matmul_seconds(rates, machine.attention, machine.bandwidth, x) for x in products)
    scores = batch * s * s / c * 2 / machine.bandwidth
    passes = [
        softmax + stack.dropout * dropout
        for softmax, dropout in zip(SOFTMAX_PASSES, DROPOUT_PASSES, strict=True)
    ]
    return forward + passes[0] * scores, 2 * forward + passes[1] * scores


def _pointwise_seconds(
    model: ModelSpec, linears: list[Linear], kind: str, cut: Cut, machine: Machine, stack: Software
) -> np.ndarray:
    t, tokens = np.asarray(cut.tensor, float), cut.tokens
    whole = stack.hidden_passes * model.hidden_size * model.norms_per_layer / 2
    alone = np.where(np.asarray(cut.sequence_parallel), t, 1.0)
    divided = sum(stack.width_passes * x.outputs * x.active for x in linears if x.split == "column")
    if kind == "moe":  # gather to experts, and back with a weighted sum
        whole = whole + 6 * model.hidden_size * model.experts_per_token
    return tokens * 2 * (whole / alone + divided / t) / machine.bandwidth + 6 * machine.rates.kernel_seconds


def _communication(model: ModelSpec, kind: str, cut: Cut, machine: Machine) -> tuple[Any, Any, Any]:
    t, c, e = np.asarray(cut.tensor), np.asarray(cut.context), np.asarray(cut.expert)
    tokens, wires = cut.tokens, machine.wires
    hidden = tokens * model.hidden_size * 2
    halves = 1 if kind == "moe" else 2  # only the attention half of a mixture layer is tensor-parallel
    tensor = halves * wires.seconds("all_reduce", hidden, t)
    if kind == "moe":
        tensor = tensor + wires.seconds("all_gather", hidden, t)
        expert = 2 * wires.dispatch_seconds(tokens / t, model.hidden_size * 2.0, model.experts_per_token, e)
    else:
        expert = np.zeros_like(tensor)
    keys = tokens / t * (model.kv_width + model.v_width) * 2
    ring = wires.seconds("all_gather", keys * c, c, t)
    return tensor, expert, (ring, 2 * ring)
