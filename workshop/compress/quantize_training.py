"""Quantization-aware training: train through the rounding. (Jacob et al., arXiv 1712.05877)

After training, rounding is a shock that the model never saw. During training it can be a part of the model:
forward uses the rounded weights, the optimizer moves the unrounded ones. But rounding is flat nearly
everywhere, so its derivative is zero and nothing would learn. The *straight-through estimator* (Bengio et al.
2013, arXiv 1308.3432) says: backward, pretend that rounding was not there::

    forward      q = rounded(w)
    backward     dL/dw = dL/dq     (zero where w lies beyond the grid's ends: moving it there changes nothing)

A weight then wanders between two grid points until it pays to be on the other one. What is trained is the
very grid that will be stored, so `finish` gives exactly the outputs that training saw.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workshop.compress.quantize import Grid, round_to_nearest
from workshop.compress.quantize_packed import PackedLinear


class StraightThrough(torch.autograd.Function):
    """Rounding whose gradient passes as if it had not been there."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, grid: Grid) -> Tensor:
        """``weight`` (rows, columns) on its grid, in its own type."""
        scale, zero = (
            each.repeat_interleave(grid.columns_of_group(weight.shape[1]), 1) for each in grid.scales(weight)
        )
        place = (weight.float() / scale).round() + zero
        ctx.save_for_backward((place >= grid.smallest) & (place <= grid.largest))
        return ((place.clamp(grid.smallest, grid.largest) - zero) * scale).to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The gradient, (rows, columns), where the code was not held at an end; zero elsewhere."""
        (inside,) = ctx.saved_tensors
        return gradient * inside, None


class RoundedLinear(nn.Linear):
    """A linear layer that computes with rounded weights and trains the unrounded ones."""

    grid: Grid

    @classmethod
    def of(cls, linear: nn.Linear, grid: Grid) -> RoundedLinear:
        """Share a layer's parameters."""
        with torch.device("meta"):
            made = cls(linear.in_features, linear.out_features, bias=linear.bias is not None)
        made.weight, made.bias, made.grid = linear.weight, linear.bias, grid
        return made

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        return F.linear(x, StraightThrough.apply(self.weight, self.grid), self.bias)

    def finish(self) -> PackedLinear:
        """The packed layer with the weights that training has been computing with."""
        bias = None if self.bias is None else self.bias.detach()
        return PackedLinear(round_to_nearest(self.weight.detach(), self.grid), bias)
