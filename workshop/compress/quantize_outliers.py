"""LLM.int8(): inputs in 8 bits too, but for the few columns that are too large. (Dettmers et al., arXiv
2208.07339)

With codes on both sides a product is done in whole numbers, which devices do fast. Inputs get a scale a row
(a position), weights a scale a row (an output), and the product of the two scales brings the sum back::

    y[i, o] = scale_x[i] * scale_w[o] * sum over k of code_x[i, k] * code_w[o, k]          (equation 3)

Inputs of language models hold *outliers*: a few features, the same ones at nearly every position, that are
tens of times larger than all others. A scale for a row must reach the outlier, and the others keep two or
three of their eight bits. So take those features out (any that passes 6 anywhere), multiply them in 16 or 32
bits, and add: *mixed-precision decomposition* (section 3.2). More than 99.9 % of the numbers stay in 8 bits.

Quantizing inputs at run time, with the scale that each row needs, is called *dynamic*. It pays where a
product is limited by arithmetic (long inputs) and the processor has instructions for int8 (AVX512-VNNI, AMX,
tensor cores); finding scales and rounding costs a pass over the inputs, each time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workshop.compress.quantize import Grid, Quantized, round_to_nearest

THRESHOLD = 6.0  # section 3.3 of the paper
INT8_ROWS = Grid(bits=8, group_size=None, scale_dtype=torch.float32)


def outlier_columns(inputs: Tensor, threshold: float = THRESHOLD) -> Tensor:
    """True for each feature of which some number reaches the threshold. ``inputs``: (..., columns)."""
    return inputs.abs().flatten(0, -2).amax(0) >= threshold


def row_codes(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """int8 codes (rows, columns) and scales (rows, 1): absmax of each row to 127."""
    scale = inputs.abs().amax(-1, keepdim=True) / 127
    scale = torch.where(scale == 0, 1.0, scale)
    return (inputs / scale).round().to(torch.int8), scale


def whole_number_product(codes_x: Tensor, codes_w: Tensor) -> Tensor:
    """codes_x (positions, k) times codes_w (rows, k), transposed, as int32."""
    return torch._int_mm(codes_x.contiguous(), codes_w.T)


def int8_product(inputs: Tensor, weight: Quantized, threshold: float = THRESHOLD) -> Tensor:
    """``inputs @ weight.T`` in whole numbers, outlier features apart.

    ``inputs``: (positions, columns); ``weight``: codes of 8 bits with one scale a row (`INT8_ROWS`). A
    threshold of infinity takes no feature apart. ValueError for other grids.
    """
    if weight.grid.bits != 8 or weight.scales.shape[1] != 1 or not weight.grid.symmetric:
        raise ValueError(
            f"{weight.grid} has no whole-number product: one symmetric int8 scale a row is needed"
        )
    apart = outlier_columns(inputs, threshold)
    inside = torch.where(apart, 0.0, inputs.float()) if apart.any() else inputs.float()
    codes, scale = row_codes(inside)
    product = whole_number_product(codes, weight.codes) * scale * weight.scales.T
    if not apart.any():
        return product
    outliers = weight.codes[:, apart] * weight.scales
    return product + inputs[:, apart].float() @ outliers.T


class Int8Linear(nn.Module):
    """A linear layer in whole numbers: int8 weights with a scale a row, inputs rounded as they come.

    threshold: features that reach it are multiplied apart; infinity (plain dynamic int8) for none.
    """

    codes: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, threshold: float = THRESHOLD) -> None:
        super().__init__()
        quantized = round_to_nearest(linear.weight.detach(), INT8_ROWS)
        self.register_buffer("codes", quantized.codes)
        self.register_buffer("scales", quantized.scales)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features), in the type of x."""
        weight = Quantized(self.codes, self.scales, torch.zeros_like(self.scales), INT8_ROWS)
        y = int8_product(x.flatten(0, -2), weight, self.threshold).to(x.dtype)
        if self.bias is not None:
            y = y + self.bias.to(x.dtype)
        return y.unflatten(0, x.shape[:-1])
