"""Seconds of one forward pass of a server: prefill, decode, or both in one batch.

A pass takes `new` tokens of each of `sequences` requests, which have `context` tokens behind them. On each
tensor rank, layer by layer:

1. **Products** read their weights once, whatever the batch: bytes / bandwidth; and do 2 FLOPs with
   each weight for each token. One token does 2 FLOPs for every byte or two that are read, and a device can do
   a hundred times more in that time: decode of few requests waits for memory (*bandwidth-bound*), a prompt of
   thousands computes (*compute-bound*). Where both take equally long is the ridge of the roofline (Williams
   et al. 2009; Pope et al. 2022, arXiv 2211.05102, section 2). Near it neither hides behind the other, so
   the two are joined by (memory^p + arithmetic^p)^(1/p).
2. **Attention** reads keys and values of every earlier token of its request: batching does not share that.
3. **All-reduces**: two a layer, of `new` rows each: latency + 2 (t-1)/t bytes / link. For a few tokens it
   is all latency.
4. **Kernels** have a shortest time; a layer has about ten of them.

Experts: m tokens that choose k of E experts touch E (1 - (1 - k/E)^m) of them, if they choose independently.

Arithmetic of up to 63 tokens is counted without the waves of whole tiles (libraries divide such products
along their depth); from 64 on as in `workshop.predict.time.matmul`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from workshop.facts.model import Linear
from workshop.facts.serving import KV_FORMATS, Serving
from workshop.predict.serving.capacity import head_bytes_per_weight, kv_bytes_per_token
from workshop.predict.serving.engines import Engine, Shares, device_rates, engine, shares
from workshop.predict.time.matmul import Product, matmul_seconds
from workshop.predict.time.rates import Rates
from workshop.predict.weight_formats import weight_format

FEW_ROWS, ROW_STEP = 64, 16
EXPERT_KERNELS = 4
"""More in a layer with experts: the router's product, the choice, gathering tokens, the weighted sum."""
NATIVE = {"fp8": "fp8"}
"""Formats whose products are computed in them; all others are unpacked and computed in 16 bits."""


@dataclass(frozen=True)
class Case:
    """A server's facts, looked up once: everything a pass needs beside its tokens."""

    serving: Serving
    engine: Engine
    shares: Shares
    rates: Rates
    known_device: bool

    @property
    def bandwidth(self) -> float:
        """Bytes/s at which one device reads what it reads once: weights, keys and values."""
        device = self.serving.run.cluster.device
        if not device.memory_bandwidth:
            raise ValueError(f"{device.name}: no memory bandwidth is known; calibrate() measures it")
        return device.memory_bandwidth * self.rates.memory

    @property
    def peak(self) -> float:
        """FLOP/s of large products in the format that they are computed in."""
        dtype = NATIVE.get(self.serving.weights, self.serving.dtype)
        device, rates = self.serving.run.cluster.device, self.rates
        if dtype in NATIVE.values() and dtype not in device.peak_flops:
            raise ValueError(
                f"{device.name} has no products in {dtype}; use weights = 'int8', which are unpacked"
            )
        return device.reachable(dtype) * (rates.sustained_fp8 if dtype == "fp8" else rates.sustained)


def case(serving: Serving, program: str | Engine) -> Case:
    """Look up what a pass needs. ValueError for what is not modelled, with a sentence."""
    layout = serving.run.layout
    for axis, why in (
        ("pipeline", "the time of stages that pass tokens on"),
        ("context", "a prompt cut over ranks"),
        ("expert", "experts dealt out over ranks"),
    ):
        if getattr(layout, axis) > 1:
            raise ValueError(
                f"{axis} = {getattr(layout, axis)}: {why} is not modelled for serving; use tensor"
            )
    if serving.run.cluster.shared_memory and layout.tensor > 1:
        raise ValueError(
            "tensor ranks of one machine share its bandwidth, which is not modelled; use tensor = 1"
        )
    rates, known = device_rates(serving.run.cluster.device)
    return Case(serving, engine(program), shares(), rates, known)


@dataclass(frozen=True)
class Forward:
    """Seconds of one forward pass by cause. `memory` and `arithmetic` are what the products would take by
    each alone; `products` is what they take together.
    """

    products: float
    attention: float
    communication: float
    kernels: float
    memory: float
    arithmetic: float
    host: float = 0.0

    @property
    def seconds(self) -> float:
        """The whole pass: what the device does, or what its host takes to launch it."""
        return max(self.products + self.attention + self.communication + self.kernels, self.host)

    @property
    def limit(self) -> str:
        """What the pass waits for most: "host", "communication", "kernels", "memory" or "arithmetic"."""
        if self.host >= self.products + self.attention + self.communication + self.kernels:
            return "host"
        waits = {
            "communication": self.communication,
            "kernels": self.kernels,
            "memory": self.memory + self.attention,
            "arithmetic": self.arithmetic,
        }
        return max(waits, key=lambda name: waits[name])


def forward(case: Case, sequences: int, new: float, context: float) -> Forward:
    """One pass: `new` tokens of each of `sequences` requests that have `context` tokens behind them."""
    model, rows = case.serving.model, sequences * new
    kinds = model.layer_kinds()
    memory = arithmetic = products = 0.0
    for kind in set(kinds):
        for linear in model.linears(kind):
            moving, computing = _product(case, linear, rows)
            count = kinds.count(kind)
            memory, arithmetic = memory + count * moving, arithmetic + count * computing
            products += count * _joined(moving, computing, case.shares.overlap)
    moving, computing = _head(case, sequences)
    kernels = model.num_layers * case.engine.kernels + kinds.count("moe") * EXPERT_KERNELS
    return Forward(
        products + _joined(moving, computing, case.shares.overlap),
        _attention(case, sequences, new, context),
        _communication(case, rows),
        kernels * case.rates.kernel_seconds,
        memory + moving,
        arithmetic + computing,
        kernels * case.rates.host_seconds if case.engine.launched else 0.0,
    )


def _joined(first: float, second: float, power: float) -> float:
    """Time of two things that hide behind each other in part."""
    return float((first**power + second**power) ** (1 / power))


def _product(case: Case, linear: Linear, rows: float) -> tuple[float, float]:
    """Seconds to read one map's weights, and to compute with them, on one rank."""
    tensor = case.serving.tensor
    inputs = linear.inputs / (tensor if linear.split == "row" else 1)
    outputs = linear.outputs / (tensor if linear.split == "column" else 1)
    copies, each = float(linear.copies), rows
    if linear.copies > 1:
        copies = linear.copies * (1 - (1 - linear.active / linear.copies) ** max(1.0, rows))
        each = max(1.0, rows * linear.active / copies)
    form = weight_format(case.serving.weights)
    num_bytes = copies * inputs * outputs * form.bytes_per_weight(linear.inputs)
    moving = num_bytes / (case.bandwidth * case.engine.unpacks(form.name))
    return moving, copies * arithmetic_seconds(case.rates, case.peak, each, inputs, outputs)


def arithmetic_seconds(rates: Rates, peak: float, rows: float, inputs: float, outputs: float) -> float:
    """Seconds to compute a product of [rows, inputs] by [inputs, outputs], its memory left out."""
    if rows >= FEW_ROWS:
        whole = float(matmul_seconds(rates, peak, float("inf"), Product(rows, outputs, inputs)))
        return whole - rates.kernel_seconds
    loss = (1 + rates.tile_loss * 2 / FEW_ROWS) / (1 + rates.tile_loss * (1 / 256 + 1 / 128))
    return 2 * ceil(rows / ROW_STEP) * ROW_STEP * inputs * outputs * loss / peak


def _head(case: Case, sequences: int) -> tuple[float, float]:
    """Reading the output head, and logits of the last token of each request."""
    model = case.serving.model
    weights = model.vocab_size * model.hidden_size / (case.serving.tensor if case.engine.head_cut else 1)
    moving = weights * head_bytes_per_weight(case.serving) / case.bandwidth
    return moving, 2.0 * sequences * weights / case.peak


def _attention(case: Case, sequences: int, new: float, context: float) -> float:
    """Reading keys and values of all that came before, or computing scores, whichever is longer.

    Layers with a window read what lies in it; the cache keeps all the same (`capacity`).
    """
    serving, model = case.serving, case.serving.model
    token = kv_bytes_per_token(model, serving.kv, serving.tensor, serving.kv_layers)
    device = serving.run.cluster.device
    share, window = model.windowed_layers / model.num_layers, model.attention_window
    behind, seen = context + new, context + (new + 1) / 2
    if share:
        behind = (1 - share) * behind + share * min(window + new, behind)
        seen = (1 - share) * seen + share * min(window, seen)
    reading = sequences * behind * token / case.bandwidth
    flops = 2.0 * sequences * new * seen * (model.q_width + model.attention_width) * model.num_layers
    rate = device.reachable(serving.dtype) * case.rates.sustained * case.shares.attention
    return max(reading, flops / serving.tensor / rate) if new > 1 else reading


def _communication(case: Case, rows: float) -> float:
    """Two all-reduces a layer over the tensor ranks."""
    tensor = case.serving.tensor
    if tensor == 1:
        return 0.0
    link = case.serving.run.cluster.link(tuple(range(tensor)))
    layers = case.serving.model.num_layers
    wire = rows * wire_bytes_per_token(case.serving) / (2 * layers)
    each = (
        case.engine.all_reduce_seconds
        + link.latency_seconds
        + wire / (link.bytes_per_second * case.rates.link)
    )
    return 2 * layers * each


def wire_bytes_per_token(serving: Serving) -> float:
    """Bytes that one tensor rank sends for each token of a pass: two all-reduces a layer.

    2 layers * 2 (t-1)/t * hidden * bytes: one after attention, one after the MLP (Shoeybi et al. 2019, arXiv
    1909.08053, section 3), each as little as an all-reduce can send. The embedding and the head come on top
    where they are cut: an all-reduce and a gathering of logits, once for all layers.
    """
    model, tensor = serving.model, serving.tensor
    row = model.hidden_size * KV_FORMATS[serving.dtype]
    return 2 * model.num_layers * 2 * (tensor - 1) / tensor * row
