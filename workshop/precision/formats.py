r"""Whole tensors in another number format, by hand: round, encode to bits, decode.

What a format is, and how one number is rounded, is written in `workshop.facts.formats`. Here the same is
done to every element at once, and the result is torch's own cast, bit for bit, where torch has one. (A NaN
stays a NaN; which of its many bit patterns comes out is the processor's affair.)

Rounding by hand is four steps, and none of them touches a bit::

    exponent = floor(log2 |x|), at least 1 - bias       the power of two below x
    step     = 2 ** (exponent - mantissa_bits)          from one value of the format to the next, there
    rounded  = round_half_even(x / step) * step         exact: step is a power of two
    rounded  = infinity or largest, where |rounded| > largest

They are done in fp64, whose 53 bits hold each of these numbers exactly.

**Overflow differs.** fp16, bf16 and E5M2 become infinite. E4M3 has no infinity. torch 2.13 gives its largest
value, 448; earlier versions gave NaN. Ask `e4m3_overflow` rather than remember it; code that must not care
clamps first (``saturate=True``), as FP8 training does.

tf32 is what a matmul reads, not what a tensor is stored in: 19 bits, kept in 32. It is rounded to even here;
a tensor core that is handed plain fp32 cuts the low bits off instead.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from workshop.facts.formats import FloatFormat, float_format

TORCH_DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e5m2": torch.float8_e5m2,
    "e4m3": torch.float8_e4m3fn,
}
"""Formats that torch has as a type."""


def power_of_two(exponent: Tensor) -> Tensor:
    """2 to whole numbers from -1022 to 1023, exactly, in fp64: the exponent goes where fp64 has it.

    exponent: any shape, which the result has too.
    """
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)


def exponents(x: Tensor) -> Tensor:
    """floor(log2 |x|) of each element, int64; for zero and what is not finite, -1023 and 1024.

    Read from the bits of fp64, so that it is exact next to a power of two, where a logarithm is not. Numbers
    below 2^-1022 (no fp32 is) also give -1023.
    """
    return ((x.double().view(torch.int64) >> 52) & 0x7FF) - 1023


def round_to(x: Tensor, form: str | FloatFormat, *, saturate: bool = False) -> Tensor:
    """The nearest value of a format for each element, as fp32 of the same shape.

    x: any floating-point tensor. saturate: what is too large, infinity included, becomes the largest value.
    A NaN stays one; ValueError if the format has none.
    """
    form = float_format(form)
    wide = x.detach().double()
    if form.special == "all" and bool(wide.isnan().any()):
        raise ValueError(f"{form} has no code for NaN: a NaN here is a mistake made before")
    exponent = exponents(wide).clamp(1 - form.bias, form.largest_exponent + 1)
    step = power_of_two(exponent - form.mantissa_bits)
    rounded = (wide / step).round() * step  # torch's round, too, goes from the middle to the even one
    bound = form.largest if saturate or form.special != "ieee" else float("inf")
    too_large = rounded.abs() > form.largest
    return rounded.where(~too_large, torch.full_like(wide, bound).copysign(wide)).float()


def encode(x: Tensor, form: str | FloatFormat, *, saturate: bool = False) -> Tensor:
    """The bits of the nearest value, as whole numbers (int64, none negative) of the same shape."""
    form = float_format(form)
    rounded = round_to(x, form, saturate=saturate).double()
    exponent = exponents(rounded).clamp(1 - form.bias, form.largest_exponent + 1)
    steps = (rounded.abs() / power_of_two(exponent - form.mantissa_bits)).nan_to_num(0, 0)
    code = steps.long() + ((exponent + form.bias - 1) << form.mantissa_bits)
    code = code.where(~rounded.isinf(), (2**form.exponent_bits - 1) << form.mantissa_bits)
    code = code.where(~rounded.isnan(), 2 ** (form.bits - 1) - 1)
    return code | (rounded.signbit().long() << (form.bits - 1))


def decode(codes: Tensor, form: str | FloatFormat) -> Tensor:
    """The values of codes (whole numbers of any type), as fp32 of the same shape.

    ValueError for a code of more bits than the format has.
    """
    form = float_format(form)
    codes = codes.long()
    if codes.numel() and (int(codes.min()) < 0 or int(codes.max()) >= form.num_codes):
        raise ValueError(
            f"codes of {form} are 0 to {form.num_codes - 1:,}; got {codes.min()} to {codes.max()}"
        )
    mantissa = codes & (2**form.mantissa_bits - 1)
    field = (codes >> form.mantissa_bits) & (2**form.exponent_bits - 1)
    steps = mantissa + (field > 0).long() * 2**form.mantissa_bits
    value = steps.double() * power_of_two(field.clamp(min=1) - form.bias - form.mantissa_bits)
    top = field == 2**form.exponent_bits - 1
    if form.special == "ieee":
        value = value.where(~top, float("inf")).where(~(top & (mantissa > 0)), float("nan"))
    elif form.special == "fn":
        value = value.where(~(top & (mantissa == 2**form.mantissa_bits - 1)), float("nan"))
    return torch.where(codes >> (form.bits - 1) > 0, -value, value).float()


# -- torch's own casts --------------------------------------------------------------------------------------


def torch_dtype(form: str | FloatFormat) -> torch.dtype:
    """torch's type of that format; ValueError where it has none."""
    name = float_format(form).name
    if name not in TORCH_DTYPES:
        raise ValueError(f"torch has no type for {name}; it has {', '.join(TORCH_DTYPES)}")
    return TORCH_DTYPES[name]


@functools.cache
def e4m3_overflow() -> float:
    """What this torch's cast makes of a number too large for E4M3: 448, or NaN."""
    return torch.tensor(1e30).to(torch.float8_e4m3fn).float().item()


def cast(x: Tensor, form: str | FloatFormat, *, saturate: bool = True) -> Tensor:
    """`round_to` by torch's cast where torch has the format: the same numbers, faster.

    x: any shape; fp32 of that shape comes back.
    """
    form = float_format(form)
    if form.name not in TORCH_DTYPES:
        return round_to(x, form, saturate=saturate)
    if saturate:
        x = x.clamp(-form.largest, form.largest)
    return x.to(TORCH_DTYPES[form.name]).float()


# -- what is lost -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RoundingError:
    """What a format does to some numbers. ``relative``: root of the summed squares of the errors, over that
    of the numbers; ``zeros`` and ``overflows``: shares of numbers that became zero, or too large.
    """

    relative: float
    zeros: float
    overflows: float


def rounding_error(x: Tensor, rounded: Tensor) -> RoundingError:
    """Compare numbers with what became of them, of the same shape; overflows do not enter ``relative``."""
    wide, after = x.double(), rounded.double()
    finite = after.isfinite()
    error = (after - wide)[finite].square().sum() / wide[finite].square().sum().clamp(min=1e-300)
    zeros = ((after == 0) & (wide != 0)).double().mean()
    return RoundingError(float(error.sqrt()), float(zeros), float((~finite).double().mean()))
