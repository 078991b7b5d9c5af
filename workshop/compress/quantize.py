"""A number becomes a small whole number and a scale: rounding to a grid.

A weight takes 16 bits, but its values are few in kind: small, around zero, of about one size in a row. So
keep a whole number of ``bits`` bits for each, its *code*, and one scale for many::

    absmax (symmetric)      scale = max|w| / (2^(bits-1) - 1)      code = round(w / scale)
                            w is taken to be  code * scale

    zero-point (asymmetric) scale = (max w - min w) / (2^bits - 1)  zero = round(-min w / scale)
                            code = round(w / scale) + zero          w is taken to be  (code - zero) * scale

Absmax spends as many codes below zero as above it; zero-point moves the grid to where the numbers are. Both
have zero itself as a value. The error of a number is at most half a scale, so **the largest number decides
how well all others are kept**. Hence groups: one scale for the whole matrix, for a row, or for ``group_size``
neighbours in a row. A group costs a scale (here 16 bits): 16 / 64 = a quarter of a bit a weight.

Rounding each weight to its nearest value, as here, is called *round to nearest*. It looks at nothing but the
weight. `quantize_gptq` and `quantize_awq` look at the inputs as well, with the same grids. `quantize_packed`
stores codes in as many bits as they have.

Dettmers et al. 2022, arXiv 2208.07339, section 2.1 (absmax and zero-point); Nagel et al. 2021, arXiv
2106.08295.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Grid:
    """Which values a weight may take: 2^bits of them in a group, evenly spaced.

    Args:
        bits: of a code, 2 to 8.
        group_size: neighbours in a row (input features) that share a scale; None: the whole row.
        symmetric: absmax; else zero-point.
        scale_dtype: in which scales are kept.
    """

    bits: int = 4
    group_size: int | None = 64
    symmetric: bool = True
    scale_dtype: torch.dtype = torch.float16

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise ValueError(f"bits = {self.bits}: a code has from 2 to 8 bits")
        if self.group_size is not None and self.group_size < 1:
            raise ValueError(f"group_size = {self.group_size}: at least 1, or None for whole rows")

    @property
    def smallest(self) -> int:
        """The lowest code."""
        return -(2 ** (self.bits - 1)) if self.symmetric else 0

    @property
    def largest(self) -> int:
        """The highest code."""
        return 2 ** (self.bits - 1) - 1 if self.symmetric else 2**self.bits - 1

    def columns_of_group(self, columns: int) -> int:
        """Columns that share a scale in a row of so many; ValueError where groups do not divide it."""
        size = self.group_size or columns
        if columns % size:
            raise ValueError(f"rows of {columns} do not divide into groups of {size}: choose a divisor")
        return size

    def scales(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and zero point of each group: two tensors (rows, groups); zeros are 0 where symmetric.

        A group of zeros gets scale 1. Scales are those that are kept, so rounded to ``scale_dtype`` already.
        """
        rows, columns = weight.shape
        groups = weight.float().reshape(rows, -1, self.columns_of_group(columns))
        if self.symmetric:
            scale = groups.abs().amax(-1) / self.largest
        else:  # the range always holds 0, so that 0 stays 0
            low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
            scale = (high - low) / self.largest
        scale = scale.to(self.scale_dtype).float()
        scale = torch.where(scale == 0, 1.0, scale)
        if self.symmetric:
            return scale, torch.zeros_like(scale)
        return scale, (-low / scale).round().clamp(self.smallest, self.largest)

    def codes(self, weight: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        """The nearest code of each number; scale and zero are broadcast. Beyond the ends: the end."""
        return (weight / scale).round_().add_(zero).clamp_(self.smallest, self.largest)


@dataclass(frozen=True)
class Quantized:
    """A matrix as codes (rows, columns) with scales and zero points (rows, groups)."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    grid: Grid

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The matrix that the codes stand for: (code - zero) * scale."""
        rows, groups = self.scales.shape
        grouped = self.codes.reshape(rows, groups, -1).float()
        values = (grouped - self.zeros.unsqueeze(-1)) * self.scales.unsqueeze(-1)
        return values.reshape(self.codes.shape).to(dtype)


def round_to_nearest(weight: Tensor, grid: Grid) -> Quantized:
    """Each weight to the nearest value of its group (`one_group_at_a_time` says it in loops).

    ``weight``: (rows, columns), any float type.
    """
    scale, zero = grid.scales(weight)
    rows, groups = scale.shape
    grouped = weight.float().reshape(rows, groups, -1)
    codes = grid.codes(grouped, scale.unsqueeze(-1), zero.unsqueeze(-1))
    kind = torch.int8 if grid.symmetric else torch.uint8
    return Quantized(codes.to(kind).reshape(weight.shape), scale, zero, grid)


def one_group_at_a_time(weight: Tensor, grid: Grid) -> Quantized:
    """`round_to_nearest` of (rows, columns) with loops, to be read: one group after the other."""
    rows, columns = weight.shape
    size = grid.columns_of_group(columns)
    scales = torch.zeros(rows, columns // size)
    zeros = torch.zeros_like(scales)
    codes = torch.zeros(rows, columns)
    for row in range(rows):
        for group in range(columns // size):
            members = slice(group * size, (group + 1) * size)
            numbers = weight[row, members].float()
            scales[row, group], zeros[row, group] = (
                absmax(numbers, grid) if grid.symmetric else zero_point(numbers, grid)
            )
            moved = (numbers / scales[row, group]).round() + zeros[row, group]
            codes[row, members] = moved.clamp(grid.smallest, grid.largest)
    kind = torch.int8 if grid.symmetric else torch.uint8
    return Quantized(codes.to(kind), scales, zeros, grid)


def absmax(numbers: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Scale and zero point of one group so that its largest magnitude gets the largest code.

    numbers: (numbers,). Both are scalars; the zero point is 0.
    """
    scale = (numbers.abs().max() / grid.largest).to(grid.scale_dtype).float()
    return (scale if scale else torch.tensor(1.0)), torch.tensor(0.0)


def zero_point(numbers: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Scale and zero point of one group so that the codes reach from its smallest number to its largest.

    numbers: (numbers,). Both are scalars.
    """
    low, high = numbers.min().clamp(max=0), numbers.max().clamp(min=0)
    scale = ((high - low) / grid.largest).to(grid.scale_dtype).float()
    scale = scale if scale else torch.tensor(1.0)
    return scale, (-low / scale).round().clamp(grid.smallest, grid.largest)


def output_error(weight: Tensor, approximate: Tensor, inputs: Tensor) -> float:
    """How far a linear layer's outputs move, relative to their size: |X (W - W')^T| / |X W^T|.

    ``inputs``: (positions, columns).
    """
    off = inputs @ (weight - approximate).T
    return float(off.norm() / (inputs @ weight.T).norm())
