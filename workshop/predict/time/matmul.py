"""How long a matrix product takes, from its shape alone.

C[rows, cols] = A[rows, depth] B[depth, cols] is 2 * rows * cols * depth FLOPs. A GPU does not do it in
2 r c d / peak seconds, for four reasons, each a factor that can be written down:

1. **Tiles.** The result is cut into tiles (256 x 128 is the largest common one), one per multiprocessor at a
   time. A tile that hangs over the edge costs as much as a whole one: ceil(rows/256) * ceil(cols/128) tiles.
2. **Waves.** With 108 multiprocessors, 109 tiles take as long as 216 (NVIDIA, "Matrix Multiplication
   Background", *tile and wave quantization*). Smaller tiles waste less at the edge but reuse less of what
   they load: a tile of a x b does a b / (a + b) products per loaded element, and reaches 1 / (1 + c (1/a +
   1/b)) of the rate. The library tries several and takes the best; so do we.
3. **Ramp.** Filling and draining a tile's pipeline costs as much as `ramp` steps along the depth.
4. **Memory.** Reading A and B and writing C takes bytes / bandwidth; the product takes the longer of the two
   (the roofline of Williams, Waterman and Patterson 2009).

A depth or a column count that is no multiple of 64 elements (128 bytes) may fall off the fast path and
reaches `misaligned` of the rate, which on an A100 is all of it; of 8 (16 bytes) `unaligned`. Where such
products come by the hundred, as the heads of unfused attention do, libraries of 2022 left the tensor cores
(`unaligned_batched`): BLOOM's model of width 13,824 took 121 seconds a step with 64 heads of 216 and 163 with
128 heads of 108; its first shape, 14,400 wide with 96 heads of 150, ran at 94 TFLOP/s where 13,824 ran at
120.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from workshop.facts.model import Linear
from workshop.predict.case import Machine
from workshop.predict.layouts import Layouts
from workshop.predict.time.rates import Rates

Numbers = Any
TILES = np.array([(256, 128), (128, 128), (128, 64), (64, 64)], dtype=float)


def alignment(rates: Rates, *sizes: Numbers) -> np.ndarray:
    """Share of the rate that is left, given the sizes along which memory is contiguous."""
    share = np.ones(np.broadcast_shapes(*(np.shape(size) for size in sizes)))
    for size in sizes:
        size = np.asarray(size)
        share = np.minimum(
            share, np.where(size % 8 != 0, rates.unaligned, np.where(size % 64 != 0, rates.misaligned, 1.0))
        )
    return share


class Product(NamedTuple):
    """`batch` products of [rows, depth] by [depth, cols]; numbers or arrays, which broadcast."""

    rows: Numbers
    cols: Numbers
    depth: Numbers
    batch: Numbers = 1


def matmul_seconds(
    rates: Rates, peak: Numbers, bandwidth: Numbers, product: Product, element_bytes: float = 2.0
) -> np.ndarray:
    """Seconds of some products; arrays broadcast.

    peak: FLOP/s of a large product in the format. bandwidth: bytes/s at which products read and write.
    """
    rows, cols, depth, batch = (np.asarray(x, dtype=float) for x in product)
    shape = np.broadcast_shapes(rows.shape, cols.shape, depth.shape, batch.shape)
    tile = TILES.reshape(len(TILES), 2, *([1] * len(shape)))
    high, wide = tile[:, 0], tile[:, 1]
    tiles = np.ceil(rows / high) * np.ceil(cols / wide) * batch
    waves = np.ceil(tiles / rates.multiprocessors)
    work = waves * (rates.multiprocessors * 2) * high * wide * (1 + rates.tile_loss * (1 / high + 1 / wide))
    work = work.min(axis=0) / (1 + rates.tile_loss * (1 / 256 + 1 / 128)) * (depth + rates.ramp)
    computing = work / (peak * alignment(rates, cols, depth))
    moving = batch * element_bytes * (rows * depth + depth * cols + rows * cols) / bandwidth
    return np.maximum(computing, moving) + rates.kernel_seconds


def training_matmul_seconds(
    rates: Rates, peak: Numbers, bandwidth: Numbers, product: Product, element_bytes: float = 2.0
) -> np.ndarray:
    """Forward, input gradient and weight gradient of a linear map, stacked on a new first axis of 3.

    Y = X W has dX = dY W^T (rows x depth, summed over cols) and dW = X^T dY (depth x cols, summed over
    rows): three products of the same FLOPs and different shapes.
    """
    rows, cols, depth, batch = (np.asarray(x, float) for x in product)
    shape = np.broadcast_shapes(rows.shape, cols.shape, depth.shape, batch.shape)
    high, wide, long = np.empty((3, 3, *shape))
    high[0], high[1], high[2] = rows, rows, depth
    wide[0], wide[1], wide[2] = cols, depth, cols
    long[0], long[1], long[2] = depth, cols, rows
    three = Product(high, wide, long, batch)
    return matmul_seconds(rates, peak, bandwidth, three, element_bytes)


class LinearSeconds(NamedTuple):
    """Seconds of some linear maps, casts included: forward, the gradients of their inputs, those of their
    weights; and of the last, the part of column-parallel maps.
    """

    forward: Any
    backward: Any
    weight: Any
    columns: Any

    def frozen(self) -> LinearSeconds:
        """The same without weight gradients."""
        return LinearSeconds(self.forward, self.backward, 0.0 * self.weight, 0.0 * self.columns)

    def plus(self, other: LinearSeconds) -> LinearSeconds:
        """Both together."""
        return LinearSeconds(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def linear_seconds(
    linears: list[Linear], layouts: Layouts, machine: Machine, fused_experts: bool = False
) -> LinearSeconds:
    """Three products for each linear map of a layer.

    Experts are spread over `expert` ranks and cut over `expert_tensor`. With `expert_tensor` = 1 each of the
    t ranks routes its 1/t of the tokens, and receives as many of others; ranks that share an expert get the
    tokens of all of them. Of `fused_experts` the second product reads what the first has quantized, and the
    other way round in backward, so that every second cast is saved.

    Experts' products take what as many plain ones take: in training they are plain ones, launched one by one
    (`facts/data/expert_launches.csv` counts them in profiles), each with its own start and its own last wave.
    Fused experts are one kernel, whose tiles fill the multiprocessors together. What a server's fused kernel
    saves besides, a quarter on a GB200 (`Rates.grouped`), is not theirs.
    """
    t, e, et = np.asarray(layouts.tensor), np.asarray(layouts.expert), np.asarray(layouts.expert_tensor)
    tokens = layouts.tokens
    stacked = np.empty((4, len(linears), *np.broadcast_shapes(t.shape, tokens.shape, e.shape)))
    rows, cols, depth, batch = stacked
    for i, linear in enumerate(linears):
        expert = linear.copies > 1
        local, ways = (linear.copies / e, et) if expert else (1.0, t)
        rows[i] = tokens / t * et * linear.active / local if expert else tokens
        cols[i] = linear.outputs / (ways if linear.split == "column" else 1)
        depth[i] = linear.inputs / (ways if linear.split == "row" else 1)
        batch[i] = local
    together = batch if fused_experts else np.ones_like(batch)
    products = Product(rows, cols, depth, together)
    seconds = training_matmul_seconds(
        machine.rates, machine.matmul, machine.feed, products, machine.element_bytes
    ) * (batch / together)
    columns = seconds[2][[linear.split == "column" and linear.copies == 1 for linear in linears]].sum(axis=0)
    seconds = seconds.sum(axis=1)
    saved = [0.5 if fused_experts and linear.copies > 1 else 1.0 for linear in linears]
    elements = stacked[0] * stacked[3] * (stacked[1] + stacked[2])
    cast = machine.cast_bytes * np.tensordot(saved, elements, 1) / machine.bandwidth
    return LinearSeconds(seconds[0] + cast / 2, seconds[1] + cast, seconds[2], columns)
