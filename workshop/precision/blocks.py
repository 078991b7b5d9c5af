r"""Formats in which a few neighbours share a scale: MXFP8, NVFP4, NF4.

Four or eight bits hold few sizes of number. A tensor holds many. So cut it into small blocks, and store one
scale with each: a block's numbers are divided by its scale, rounded, and multiplied back when they are read.

========  =====  ========================  ===================================================  ====  ======
name      block  a number                  scales                                               bits  source
========  =====  ========================  ===================================================  ====  ======
mxfp8     32     E4M3 (or E5M2)            a power of two a block: E8M0, 8 bits of exponent     8.25  [1]
mxfp4     32     E2M1                      the same                                             4.25  [1]
nvfp4     16     E2M1                      E4M3 a block, and one fp32 for the tensor            4.5   [2]
nf4       64     one of sixteen quantiles  fp32 a block: its largest magnitude                  4.5   [3]
========  =====  ========================  ===================================================  ====  ======

A power of two costs no digits, but it wastes up to half of the range. There are two rules for it ::

    floor    2^(floor(log2 amax) - largest exponent of the element)    [1], section 6.3; what lies above the
                                                                       largest value is cut down to it
    ceil     the smallest power of two with amax / scale <= largest    [4]: nothing is ever cut; a pretraining
                                                                       of 8 billion parameters wanted this

NVFP4's block scale is a number of E4M3, with digits, but of little range. The tensor's scale brings the
blocks' scales into it: tensor_scale = amax / (448 * 6), 448 and 6 being the largest E4M3 and E2M1.

[1] OCP Microscaling Formats (MX) specification v1.0, 2023, table 1 and section 6.3. [2] NVIDIA, Introducing
NVFP4, 2025; Pretraining LLMs with NVFP4, arXiv 2509.25149, section 2. [3] Dettmers et al. 2023, arXiv
2305.14314, section 3; the values in `workshop.facts.nf4`. [4] Mishra et al. 2025, arXiv 2506.08027.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workshop.facts.checks import check_choice
from workshop.facts.formats import float_format
from workshop.facts.nf4 import NF4_MIDPOINTS, NF4_VALUES
from workshop.precision.formats import cast, encode, exponents, power_of_two
from workshop.precision.formats import decode as decode_elements

BLOCK = {"mxfp8": 32, "mxfp8-e5m2": 32, "mxfp4": 32, "nvfp4": 16, "nf4": 64}
"""Numbers that share a scale."""

ELEMENT = {"mxfp8": "e4m3", "mxfp8-e5m2": "e5m2", "mxfp4": "e2m1", "nvfp4": "e2m1"}
"""The format of each of them; NF4 has a table instead."""


@dataclass(frozen=True)
class Blocks:
    """A tensor in a block format.

    codes: int64, (blocks, numbers in a block). scales: fp32, (blocks,), the value of each block's scale.
    tensor_scale: one fp32 number more, for all (NVFP4), else 1. shape: of the tensor that was encoded.
    """

    name: str
    codes: Tensor
    scales: Tensor
    tensor_scale: float
    shape: torch.Size

    @property
    def bits(self) -> float:
        """Bits a number: its own and its part of the scale's (one number for a whole tensor not counted)."""
        own = 4 if self.name == "nf4" else float_format(ELEMENT[self.name]).bits
        return own + (32 if self.name == "nf4" else 8) / BLOCK[self.name]

    def decode(self) -> Tensor:
        """The values, as fp32 of the shape that was encoded."""
        if self.name == "nf4":
            values = torch.tensor(NF4_VALUES, device=self.codes.device)[self.codes]
        else:
            values = decode_elements(self.codes, ELEMENT[self.name])
        scales = self.scales * torch.tensor(self.tensor_scale)
        return (values * scales.unsqueeze(-1)).view(self.shape)


def encode_blocks(x: Tensor, name: str, *, rule: str = "floor") -> Blocks:
    """A tensor in a block format; blocks run along the last dim.

    x: finite floating-point numbers of any shape; its last dim (for NF4: all its numbers) must divide into
    whole blocks.
    rule: "floor" or "ceil", for the formats whose scale is a power of two. ValueError says what does not fit.
    """
    check_choice("block format", name, BLOCK)
    check_choice("rule", rule, ("floor", "ceil"))
    size, across = BLOCK[name], x.numel() if name == "nf4" else x.shape[-1]
    if across % size:
        raise ValueError(
            f"{across} numbers do not divide into {name}'s blocks of {size}: pad them with zeros"
        )
    if not bool(x.isfinite().all()):
        raise ValueError(f"{name} has no infinity to share a scale with: {int((~x.isfinite()).sum())} found")
    blocks = x.detach().float().reshape(-1, size)
    amax = blocks.abs().amax(-1)
    if name == "nf4":
        return _encode_nf4(blocks, amax, x.shape)
    if name == "nvfp4":
        return _encode_nvfp4(blocks, amax, x.shape)
    scales = mx_scale(amax, ELEMENT[name], rule)
    codes = encode(blocks / scales.unsqueeze(-1), ELEMENT[name], saturate=True)
    return Blocks(name, codes, scales, 1.0, x.shape)


def mx_scale(amax: Tensor, element: str, rule: str = "floor") -> Tensor:
    """The power of two for blocks of these largest magnitudes: (blocks,) fp32; 2^-127 for one of zeros."""
    form = float_format(element)
    exponent = exponents(amax) - form.largest_exponent
    if rule == "ceil":
        exponent = exponents(amax.double() / form.largest)
        exponent = (
            exponent + (power_of_two(exponent.clamp(-1022, 1023)) * form.largest < amax.double()).long()
        )
    return power_of_two(exponent.clamp(-127, 127)).float()


def _encode_nvfp4(blocks: Tensor, amax: Tensor, shape: torch.Size) -> Blocks:
    largest, most = float_format("e4m3").largest, float_format("e2m1").largest
    tensor_scale = (amax.amax() / (largest * most)).clamp(min=torch.finfo(torch.float32).tiny)
    wanted = (amax / most / tensor_scale).clamp(min=float_format("e4m3").smallest_normal)
    scales = cast(wanted, "e4m3")
    # Times the reciprocal, not divided by: so do kernels, and a middle may round otherwise.
    codes = encode(blocks * (1 / tensor_scale / scales).unsqueeze(-1), "e2m1", saturate=True)
    return Blocks("nvfp4", codes, scales, float(tensor_scale), shape)


def _encode_nf4(blocks: Tensor, amax: Tensor, shape: torch.Size) -> Blocks:
    middles = torch.tensor(NF4_MIDPOINTS, device=blocks.device)
    scaled = blocks / amax.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)
    return Blocks("nf4", torch.bucketize(scaled, middles), amax, 1.0, shape)
