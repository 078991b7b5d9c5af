"""The core of attention: two products per head, and what lies between them.

*Flash* kernels keep the scores on chip (Dao et al., arXiv 2205.14135). How fast they are was measured, by
device, generation of the kernel, pass and length of the sequence (`facts/data/attention.csv`): 180 TFLOP/s
forward on an A100 at 2,048 tokens and 217 at 8,192; 1,319 and 1,559 on a GB200. Between two lengths the time
of a token is a straight line in its keys, 1 / rate = a + b / length; a causal mask halves the FLOPs but not
b, and has curves of its own.

- A training step keeps of the measured rate what it keeps of every product's (`Rates.sustained`).
- Narrow heads leave less arithmetic per exponential: a width d reaches d / (d + w) of what is left, with w
  from measurements at 64 and 128 (32 where there are none: FlashAttention-2).
- Few heads and short sequences leave multiprocessors without a block to work on.
- Packed documents have the keys of their document only.
- Where queries see a window of keys, blocks that nobody sees are passed over. Windows of 128 were timed
  (`facts/data/attention_windows.csv`): a token costs the same at every length, but in cuDNN's backward in 8
  bits, which passes nothing over. For another window the line of a causal mask is taken where a query sees as
  many keys on average.

*Unfused* attention writes and reads s x s scores per head a dozen times, and that, not arithmetic, is what it
costs. It computes all scores, of packed documents and of windows too, and masks them.

*Rotary positions* are a kernel's, and `Software.width_passes` counts it. YaRN multiplies cosine and sine by a
factor (Peng et al., arXiv 2309.00071, section 3.4), which Transformer Engine's kernel does not. Megatron-Core
then turns queries and keys by hand (github NVIDIA/Megatron-LM
megatron/core/models/common/embeddings/rope_utils.py: apply_rotary_pos_emb, _apply_rotary_pos_emb_bshd):

    t, rest = t[..., :d], t[..., d:]        # d is the whole width: the first is t itself, the second is empty
    t = t * cos + cat((-t2, t1)) * sin
    return cat((t, rest))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from workshop.facts.microbenchmarks import Attention, WindowedAttention, attention, windowed_attention
from workshop.facts.model import ModelSpec
from workshop.facts.stack import Software
from workshop.predict.case import Machine, NotPredictable, Setting
from workshop.predict.flops import seen_keys
from workshop.predict.layouts import Layouts
from workshop.predict.time.matmul import Product, matmul_seconds

FLASH = ("flash-1", "flash-triton", "flash-2", "flash-3")
KERNELS = {
    "flash-1": ("flash-2", "cudnn"),
    "flash-triton": ("flash-2", "cudnn"),
    "flash-2": ("flash-2", "cudnn"),
    "flash-3": ("cudnn", "flash-3", "flash-2"),
}
"""What was timed for each kernel; the first that a device has. The third generation is Hopper's, and cuDNN's,
which Transformer Engine takes there; on a device before Hopper there is the second only."""
BESIDE_FLASH_2 = {"flash-1": 1 / 2.5, "flash-triton": 1 / 1.3}
"""Rates of earlier kernels relative to FlashAttention-2's (Dao, arXiv 2307.08691, section 4: it is 1.7 to 3
times as fast as FlashAttention, and 1.3 to 2.5 times as fast as FlashAttention in Triton). Where in these
ranges, for Triton at the edge, was decided by InternEvo's and MosaicML's rows of A100, so that both want the
same share.
"""
MEASURED_ON = {"A100-80GB": ("A100-80GB",), "H100": ("H100", "H200"), "GB200": ("GB200",), "B200": ("GB200",)}
"""Devices whose rows stand for a device that was timed: an H200 computes as fast as an H100."""
LENGTH = 8192
"""Where rates of different sources are compared."""
USUAL_WIDTH = 32.0

# Reads and writes of the s x s scores besides the products themselves, forward and backward. Softmax reads
# and writes (backward: reads two, writes one); dropout reads, writes, and keeps a mask of half the width.
SOFTMAX_PASSES = (2.0, 3.0)
DROPOUT_PASSES = (2.5, 2.5)

# Reads and writes of queries and keys that are turned by hand. Forward: the product with the cosine 2, the
# half's sign 1, joining the halves 2, the product with the sine 2, the sum 3, the last joining 2. Backward:
# the products 4, the sign 1, the halves' gradients joined 2, zeros from the empty slice 1, the sums of these
# three 6. A fused kernel has 2 each way. Kernels: six of queries, as many of keys, six for cosine and sine
# each time.
ROTARY_PASSES, FUSED_ROTARY_PASSES = (12.0, 14.0), 2.0
ROTARY_KERNELS = 24.0


@dataclass(frozen=True)
class Line:
    """Seconds of 1e12 FLOPs by the inverse of the length: straight lines between what was measured."""

    inverse_lengths: np.ndarray
    seconds: np.ndarray

    def rate(self, seq_len: Any) -> np.ndarray:
        """TFLOP/s at a number of keys; beyond the shortest the last line goes on."""
        x, y = self.inverse_lengths, self.seconds
        at = 1.0 / np.asarray(seq_len, float)
        seconds = np.interp(at, x, y)
        if len(x) > 1:
            slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
            seconds = seconds + np.maximum(slope, 0.0) * np.maximum(at - x[-1], 0.0)
        return 1.0 / seconds

    def times(self, factor: float) -> Line:
        """The same shape, `factor` times as fast."""
        return Line(self.inverse_lengths, self.seconds / factor)


@dataclass(frozen=True)
class AttentionRates:
    """TFLOP/s of one kernel on one device with heads of 128, forward and backward, by mask; `width`: w.

    windows: the same, by the keys that a query sees at most.
    """

    lines: dict[tuple[bool, str], Line]
    width: float
    share: float = 1.0  # of these rates, that the kernel asked for reaches
    windows: dict[tuple[int, str], Line] = field(default_factory=dict)

    def rate(self, causal: bool, pass_: str, seq_len: Any, head_dim: float) -> np.ndarray:
        """TFLOP/s."""
        narrow = narrowness(head_dim, self.width)
        return self.share * narrow * self.lines[causal, pass_].rate(seq_len)

    def windowed_rate(self, window: Any, pass_: str, seq_len: Any, head_dim: float) -> np.ndarray:
        """TFLOP/s where a query sees `window` keys at most, by the FLOPs of what it sees."""
        timed = self.windows.get((int(np.min(window)), pass_))
        if timed is None:
            return self.rate(True, pass_, 2 * seen_keys(window, seq_len), head_dim)
        return self.share * narrowness(head_dim, self.width) * timed.rate(seq_len)


def narrowness(head_dim: float, width: float) -> float:
    """Rate with heads of a width relative to that with heads of 128."""
    return head_dim / (head_dim + width) * (128 + width) / 128


def line(rows: Sequence[Attention | WindowedAttention]) -> Line:
    """A line through some rows."""
    ordered = sorted(rows, key=lambda row: -row.seq_len)
    return Line(np.array([1.0 / r.seq_len for r in ordered]), np.array([1.0 / r.tflops for r in ordered]))


@cache
def attention_rates(device: str, kernel: str, bits: int = 16) -> AttentionRates:
    """What was measured of a kernel on a device; in 16 bits where nobody timed it in 8.

    One point alone (FlashAttention-2 on H100, at 8,192) takes the shape of the same kernel's line on an A100.

    Raises:
        NotPredictable: nobody has timed fused attention on the device.
    """
    places = MEASURED_ON.get(device, ())
    here = [row for row in attention() if row.device in places]
    sixteen = [row for row in here if row.dtype == "bf16"]
    eight = [row for row in here if row.dtype == "fp8"]
    mine = eight if bits == 8 and eight else sixteen
    known = {row.kernel for row in mine}
    timed = next((name for name in KERNELS[kernel] if name in known), None)
    if timed is None:
        raise NotPredictable(
            f"nobody has timed {kernel} attention on {device!r} (known: {', '.join(MEASURED_ON)}); add rows "
            "to facts/data/attention.csv, or predict unfused attention"
        )
    lines = {}
    for causal in (True, False):
        for pass_ in ("forward", "backward"):
            rows = _rows(mine, timed, causal, pass_)
            through = line(rows)
            if len(rows) == 1:
                shape = line(_rows(list(attention()), timed, causal, pass_, "A100-80GB"))
                through = shape.times(rows[0].tflops / float(shape.rate(rows[0].seq_len)))
            lines[causal, pass_] = through
    width = _width(sixteen, timed)
    windows = _windows(places, timed, mine[0].dtype, width)
    return AttentionRates(lines, width, BESIDE_FLASH_2.get(kernel, 1.0), windows)


def _windows(places: tuple[str, ...], kernel: str, dtype: str, width: float) -> dict[tuple[int, str], Line]:
    """Lines by window and pass, brought to heads of 128."""
    by_window: dict[tuple[int, str], list[WindowedAttention]] = {}
    for row in windowed_attention():
        if row.device in places and (row.kernel, row.dtype) == (kernel, dtype):
            by_window.setdefault((row.window, row.pass_), []).append(row)
    return {key: line(rows).times(1 / narrowness(rows[0].head_dim, width)) for key, rows in by_window.items()}


def _rows(rows: list[Attention], kernel: str, causal: bool, pass_: str, device: str = "") -> list[Attention]:
    wanted = (kernel, 128, causal, pass_)
    return [
        row
        for row in rows
        if (row.kernel, row.head_dim, row.causal, row.pass_) == wanted and device in ("", row.device)
    ]


def _width(rows: list[Attention], kernel: str) -> float:
    """w of d / (d + w), from rates at 64 and 128 of the kernel, else of a server's; the usual one where there
    are none. What starves a narrow head is the exponentials' rate beside the products', so a kernel that
    reaches less of the products' rate (the second generation on Hopper) loses less to it.
    """
    ratios = _narrow(rows, kernel) or _narrow(rows, "serving")
    if not ratios:
        return USUAL_WIDTH
    # r = (128 / (128 + w)) / (64 / (64 + w))
    r = float(np.clip(np.median(ratios), 1.0, 1.9))
    return (128 * r - 128) / (2 - r)


def _narrow(rows: list[Attention], kernel: str) -> list[float]:
    """How much faster a kernel is with heads of 128 than of 64, by pass, mask and length that has both."""
    wide, narrow = (
        {(x.causal, x.pass_, x.seq_len): x.tflops for x in rows if (x.kernel, x.head_dim) == (kernel, width)}
        for width in (128, 64)
    )
    return [rate / narrow[key] for key, rate in wide.items() if key in narrow]


def turned_by_hand(model: ModelSpec, stack: Software) -> bool:
    """Whether this stack turns this model's queries and keys operation by operation."""
    return stack.plain_scaled_rotary and model.rotary_factor != 1.0


def rotary_bytes(model: ModelSpec, stack: Software, element_bytes: float) -> float:
    """Bytes that rotary positions move for a token in a layer, less a fused kernel's; a third of a step's."""
    passes = sum(ROTARY_PASSES) - 2 * FUSED_ROTARY_PASSES
    return turned_by_hand(model, stack) * passes / 3 * (model.q_width + model.kv_width) * element_bytes


def attention_seconds(setting: Setting, layouts: Layouts) -> tuple[Any, Any]:
    """Seconds of one layer's core, forward and backward, for one micro-batch on one rank."""
    if setting.stack.attention in FLASH:
        return _flash_seconds(setting, layouts)
    return _unfused_seconds(setting, layouts)


def _flash_seconds(setting: Setting, layouts: Layouts) -> tuple[Any, Any]:
    """Of an average layer: those with a window and those without by their share."""
    share = setting.model.windowed_layers / setting.model.num_layers
    whole = _fused_seconds(setting, layouts, 0)
    if not share:
        return whole
    seen = _fused_seconds(setting, layouts, setting.model.attention_window)
    forward, backward = ((1 - share) * x + share * y for x, y in zip(whole, seen, strict=True))
    return forward, backward


def _fused_seconds(setting: Setting, layouts: Layouts, window: int) -> tuple[Any, Any]:
    """Of a layer whose queries see `window` keys at most; 0: all that came before."""
    model, machine, rates = setting.model, setting.machine, setting.machine.rates
    cut = layouts.micro_batch, layouts.seq_len, layouts.context, layouts.tensor
    b, s, c, t = (np.asarray(x, float) for x in cut)
    heads = model.num_heads / t
    d_qk, d_v = model.q_width / model.num_heads, model.attention_width / model.num_heads
    keys = np.minimum(setting.document_len or s, s)
    widest = np.minimum(window, keys)
    seen = seen_keys(widest, keys) if window else keys * (0.5 if model.causal else 1.0)
    flops = 2 * b * (s / c) * seen * heads * (d_qk + d_v)
    blocks = b * heads * np.maximum(s / c / 128, 1)
    full = np.ceil(blocks / rates.multiprocessors) * rates.multiprocessors / blocks
    forward, backward = (
        fused_flops(setting, machine, pass_, keys, d_v, widest if window else 0)
        for pass_ in ("forward", "backward")
    )
    kernel = rates.kernel_seconds
    return flops * full / forward + kernel, 2.5 * flops * full / backward + 3 * kernel


def fused_flops(
    setting: Setting, machine: Machine, pass_: str, keys: Any, head_dim: float, window: Any = 0
) -> Any:
    """FLOP/s of the stack's fused attention on the setting's device; `window`: keys that a query sees."""
    timed, kernel = machine.rates.timed, setting.stack.attention
    if not timed:  # a machine that was measured here: half of its own products' rate
        return machine.attention * UNTIMED
    rates = attention_rates(timed, kernel, setting.stack.attention_bits)
    rate = (
        rates.windowed_rate(window, pass_, keys, head_dim)
        if np.any(window)
        else rates.rate(setting.model.causal, pass_, keys, head_dim)
    )
    return rate * 1e12 * machine.timed_share * machine.rates.attention


def _unfused_seconds(setting: Setting, layouts: Layouts) -> tuple[Any, Any]:
    model, machine, stack = setting.model, setting.machine, setting.stack
    cut = layouts.micro_batch, layouts.seq_len, layouts.context, layouts.tensor
    b, s, c, t = (np.asarray(x, float) for x in cut)
    batch = b * model.num_heads / t
    d_qk, d_v = model.q_width / model.num_heads, model.attention_width / model.num_heads
    products = (Product(s / c, s, d_qk, batch), Product(s / c, d_v, s, batch))
    rates = machine.rates.with_values(unaligned=machine.rates.unaligned_batched)
    forward = sum(matmul_seconds(rates, machine.attention, machine.feed, x) for x in products)
    scores = batch * s * s / c * machine.activation_bytes / machine.bandwidth
    passes = [
        softmax + stack.dropout * dropout
        for softmax, dropout in zip(SOFTMAX_PASSES, DROPOUT_PASSES, strict=True)
    ]
    return forward + passes[0] * scores, 2 * forward + passes[1] * scores


UNTIMED = 0.5
"""Share of a product's rate that fused attention is taken to reach on a device that nobody has timed."""
