"""Codes in as many bits as they have, and a linear layer that holds nothing else.

A tensor's smallest number is a byte. Codes of four bits are laid two to a byte, codes of three bits eight to
three bytes: code after code, each with its lowest bit first. Only then is a quantized model small: many
libraries' trial modes keep weights of 16 bits that merely *take* few values (*fake quantization*).

A weight then takes, with a scale of 16 bits a group, and a zero point as wide as a code where there is one::

    bits / 8  +  2 / group_size  ( + bits / 8 / group_size )     bytes

`PackedLinear` unpacks before each product: weights travel from memory in few bits, and the product is done in
the type of the inputs (*weight-only* quantization). On a GPU one kernel does both. Here unpacking is a
handful of tensor operations, so the layer saves memory and costs time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workshop.compress.quantize import Quantized


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Codes (rows, columns), from 0 to 2^bits - 1, as bytes (rows, columns * bits / 8).

    The plain version, for any width: write each code as its bits, and read eight bits as a byte. ValueError
    where a row does not fill whole bytes, or a code has more bits.
    """
    rows, columns = codes.shape
    if columns * bits % 8:
        raise ValueError(f"a row of {columns} codes of {bits} bits does not fill whole bytes")
    if int(codes.min()) < 0 or int(codes.max()) > 2**bits - 1:
        raise ValueError(f"codes from {codes.min()} to {codes.max()} do not fit into {bits} bits from 0 up")
    single = codes.to(torch.uint8).unsqueeze(-1) >> _places(bits, codes.device) & 1
    by_eight = single.reshape(rows, -1, 8) << _places(8, codes.device)
    return by_eight.sum(-1, dtype=torch.uint8)


def unpack_bits(packed: Tensor, bits: int) -> Tensor:
    """What `pack_bits` was given, as bytes (rows, columns)."""
    rows = len(packed)
    single = packed.unsqueeze(-1) >> _places(8, packed.device) & 1
    by_code = single.reshape(rows, -1, bits) << _places(bits, packed.device)
    return by_code.sum(-1, dtype=torch.uint8)


def _places(bits: int, device: torch.device) -> Tensor:
    """By how many places each bit of a number is shifted, the lowest first: 0, 1, 2, ..."""
    return torch.arange(bits, dtype=torch.uint8, device=device)


def pack(codes: Tensor, bits: int) -> Tensor:
    """`pack_bits`, and for 4 and 8 bits without taking codes apart.

    codes: (rows, columns). Returns (rows, columns * bits / 8).
    """
    if bits == 8:
        return codes.to(torch.uint8)
    if bits == 4 and codes.shape[1] % 2 == 0:
        pairs = codes.to(torch.uint8)
        return pairs[:, 0::2] | pairs[:, 1::2] << 4
    return pack_bits(codes, bits)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """What `pack` was given, (rows, columns), from (rows, columns * bits / 8)."""
    if bits == 8:
        return packed
    if bits == 4:
        return torch.stack((packed & 15, packed >> 4), -1).flatten(1)
    return unpack_bits(packed, bits)


class PackedLinear(nn.Module):
    """A linear layer whose weights are packed codes.

    Args:
        quantized: codes, scales and zero points of the weight (out_features, in_features).
        bias: kept as it is.
        input_scale: (in_features,) by which inputs are multiplied first (AWQ); None for none.

    Packed codes, scales and zero points are buffers, so they move with the module and are saved with it;
    there is nothing to train. ``bytes_held`` counts them.
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor | None
    bias: Tensor | None
    input_scale: Tensor | None

    def __init__(self, quantized: Quantized, bias: Tensor | None = None, input_scale: Tensor | None = None):
        super().__init__()
        self.grid = grid = quantized.grid
        self.out_features, self.in_features = quantized.codes.shape
        codes = quantized.codes.to(torch.int16) - grid.smallest
        self.register_buffer("packed", pack(codes, grid.bits))
        self.register_buffer("scales", quantized.scales.to(grid.scale_dtype))
        zeros = None if grid.symmetric else _packed_zeros(quantized.zeros, grid.bits)
        self.register_buffer("zeros", zeros)
        self.register_buffer("bias", bias)
        self.register_buffer("input_scale", input_scale)

    def quantized(self) -> Quantized:
        """Codes, scales and zero points, unpacked."""
        codes = unpack(self.packed, self.grid.bits)
        if self.zeros is None:
            codes = codes.view(torch.int8).add(self.grid.smallest)
            zeros = torch.zeros_like(self.scales, dtype=torch.float32)
        else:
            zeros = unpack_bits(self.zeros.unsqueeze(0), self.grid.bits)[0, : self.scales.numel()]
            zeros = zeros.reshape(self.scales.shape).float()
        return Quantized(codes, self.scales.float(), zeros, self.grid)

    def weight_values(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weights that the codes stand for, without ``input_scale``."""
        return self.quantized().dequantize(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        if self.input_scale is not None:
            x = x * self.input_scale.to(x.dtype)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight_values(x.dtype), bias)

    @property
    def bytes_held(self) -> int:
        """Bytes of codes, scales, zero points, and of the input's scale; without the bias."""
        held = (self.packed, self.scales, self.zeros, self.input_scale)
        return sum(tensor.untyped_storage().nbytes() for tensor in held if tensor is not None)

    def extra_repr(self) -> str:
        """Sizes and grid, for print."""
        kind = "symmetric" if self.grid.symmetric else "asymmetric"
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bits={self.grid.bits}, "
            f"group_size={self.grid.group_size}, {kind}"
        )


def _packed_zeros(zeros: Tensor, bits: int) -> Tensor:
    """Zero points end to end in one row of packed bits, filled up to whole bytes."""
    flat = zeros.flatten().to(torch.uint8)
    return pack_bits(F.pad(flat, (0, -flat.numel() % 8)).unsqueeze(0), bits)[0]
