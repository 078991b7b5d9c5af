r"""NF4 by hand: sixteen numbers for a weight, where weights are.

Trained weights are spread about like a normal distribution. Sixteen numbers at equal distances would leave
most of their codes to the rare large weights. NF4 (Dettmers et al. 2023, arXiv 2305.14314, section 3 and
appendix E) puts its numbers at *quantiles*, so that all codes are put to use (`facts.nf4` derives them)::

    code     0      1      2      3     ...   7    8     ...   14     15
    value  -1.00  -0.70  -0.53  -0.39   ...   0   0.08   ...  0.72   1.00

A tensor is cut into blocks of 64. Each keeps its largest absolute value, absmax, in fp32, and for each
weight the code nearest to w / absmax: 4 bits and 32/64, so 4.5 bits a weight.

**Double quantization** (section 3) spends less on the absmax: subtract their mean, cut them into blocks of
256, and keep 8 bits for each and an fp32 scale for each 256: 8/64 + 32/(64·256) = 0.127 bits a weight
instead of 0.5. The 8-bit numbers are "dynamic" ones (Dettmers et al. 2021, arXiv 2110.02861, section 2.1):
in each decade from 10⁻⁶ to 1 some equal steps, the more the larger the decade.

Codes and absmax here are bitsandbytes' own, bit for bit. So are the 8-bit scales but for a few in a thousand:
bitsandbytes' CPU kernel decides otherwise within 2⁻¹⁶ of the middle between two codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from workshop.facts.nf4 import BLOCK, BLOCK_OF_SCALES, NF4_VALUES

SMALLEST = 1e-38  # a block of zeros is divided by this


@lru_cache(maxsize=1)
def nf4_values() -> Tensor:
    """The sixteen numbers, ascending: (16,) fp32; `facts.nf4` derives them."""
    return torch.tensor(NF4_VALUES)


@lru_cache(maxsize=1)
def dynamic_values() -> Tensor:
    """256 numbers in [-1, 1], ascending: (256,) fp32.

    In the decade 10^(e-7) to 10^(e-6) lie 2^e steps of each sign.
    """
    values = [torch.zeros(1), torch.ones(1)]
    for e in range(7):
        edges = torch.linspace(0.1, 1, 2**e + 1)
        middles = 10.0 ** (e - 6) * (edges[:-1] + edges[1:]) / 2
        values += [middles, -middles]
    return torch.cat(values).sort().values


def nearest(x: Tensor, values: Tensor) -> Tensor:
    """Of each x the place of the nearest ``values``, which ascend: how many midpoints lie below it.

    x: any shape; values: (n,), at most 256. Returns uint8 in the shape of x.
    """
    midpoints = (values[:-1] + values[1:]) / 2
    return torch.bucketize(x, midpoints.to(x.device)).to(torch.uint8)


def block_codes(flat: Tensor, block: int, values: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (n,) uint8 and absmax (n / block,) fp32 of a flat fp32 tensor; the last block may be short."""
    num_blocks = -(-flat.numel() // block)
    padded = torch.zeros(num_blocks * block, device=flat.device)
    padded[: flat.numel()] = flat
    rows = padded.view(num_blocks, block)
    absmax = rows.abs().amax(dim=1)
    scaled = rows * (1.0 / absmax.clamp(min=SMALLEST))[:, None]
    return nearest(scaled, values).view(-1)[: flat.numel()], absmax


@dataclass(frozen=True)
class DoubleQuantized:
    """absmax in 8 bits: ``values[codes] * scales + offset``.

    codes (num_blocks,) uint8; scales (num_blocks / 256,) fp32, rounded up; offset, a scalar.
    """

    codes: Tensor
    scales: Tensor
    offset: Tensor

    def absmax(self) -> Tensor:
        """Back to fp32, (num_blocks,)."""
        values = dynamic_values().to(self.codes.device)[self.codes.long()]
        return values * self.scales.repeat_interleave(BLOCK_OF_SCALES)[: values.numel()] + self.offset


@dataclass(frozen=True)
class NF4:
    """A tensor of ``shape`` in NF4.

    packed: (numbers / 2,) uint8, two codes a byte, the first in the upper half.
    """

    packed: Tensor
    scales: Tensor | DoubleQuantized
    shape: tuple[int, ...]
    dtype: torch.dtype

    def absmax(self) -> Tensor:
        """The largest absolute value of each block of 64: (num_blocks,) fp32."""
        return self.scales.absmax() if isinstance(self.scales, DoubleQuantized) else self.scales

    def codes(self) -> Tensor:
        """One uint8 for each weight, 0 to 15: (numbers,)."""
        both = torch.stack([self.packed >> 4, self.packed & 15], dim=1).view(-1)
        return both[: prod(self.shape)]

    def dequantize(self) -> Tensor:
        """The tensor again, in its shape and type, as near as sixteen numbers come."""
        values = nf4_values().to(self.packed.device)[self.codes().long()]
        scale = self.absmax().repeat_interleave(BLOCK)[: values.numel()]
        return (values * scale).view(self.shape).to(self.dtype)

    @property
    def num_bytes(self) -> int:
        """Bytes of everything that is kept."""
        kept = [self.packed]
        kept += (
            [self.scales.codes, self.scales.scales, self.scales.offset]
            if isinstance(self.scales, DoubleQuantized)
            else [self.scales]
        )
        return sum(tensor.numel() * tensor.element_size() for tensor in kept)


def quantize_nf4(weight: Tensor, double: bool = False) -> NF4:
    """A tensor of any shape in NF4, with its scales in 8 bits if ``double``."""
    codes, absmax = block_codes(weight.detach().float().reshape(-1), BLOCK, nf4_values())
    if codes.numel() % 2:
        codes = torch.cat([codes, nearest(torch.zeros(1, device=codes.device), nf4_values())])
    packed = codes[::2] << 4 | codes[1::2]
    scales = double_quantize(absmax) if double else absmax
    return NF4(packed, scales, tuple(weight.shape), weight.dtype)


def double_quantize(absmax: Tensor) -> DoubleQuantized:
    """The scales of blocks, (num_blocks,), in 8 bits, with an fp32 scale for each 256 of them."""
    offset = absmax.mean()
    return DoubleQuantized(*block_codes(absmax - offset, BLOCK_OF_SCALES, dynamic_values()), offset)
