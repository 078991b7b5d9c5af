r"""What 32, 16 and 8 bits can say: number formats, and one number at a time in each of them.

A floating-point format is three fields: a sign s, an exponent E of e bits, a mantissa M of m bits ::

    E > 0    value = (-1)^s  2^(E - bias)  (1 + M / 2^m)       normal: the one before the point is not stored
    E = 0    value = (-1)^s  2^(1 - bias)  (0 + M / 2^m)       subnormal: evenly spaced down to zero

with bias = 2^(e-1) - 1. The exponent's bits buy range, the mantissa's bits buy digits: neighbours are
2^-m apart, relatively, wherever they are. What the largest E means is where formats differ:

========  =================================================================  ===============================
special   the largest E                                                      formats
========  =================================================================  ===============================
``ieee``  M = 0 is infinite, the others are no numbers (IEEE 754, 3.4)        fp32, tf32, bf16, fp16, E5M2
``fn``    *finite*: ordinary numbers, but for M all ones, which is NaN        E4M3
``all``   ordinary numbers throughout: nothing infinite, no NaN               E2M1 (NVFP4, MXFP4)
========  =================================================================  ===============================

E4M3 gave its infinities away for one more doubling: its largest value is 448, where IEEE's rule would end at
240 (Micikevicius et al. 2022, arXiv 2209.05433, table 1).

Rounding goes to the nearest value, and from the middle to the one whose mantissa is even. A value that would
round past the largest overflows: to infinity where there is one, else to the largest value, which is also
what "saturate" asks of any format. (That is the rule of torch 2.13; see `precision.formats`.)

Here is the plain version, one Python number at a time; tensors are in `workshop.precision.formats`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workshop.facts.checks import check_choice


@dataclass(frozen=True)
class FloatFormat:
    """A floating-point format: widths of its fields, and what its largest exponent means."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    special: str  # "ieee", "fn" or "all", see above
    source: str

    def __str__(self) -> str:
        return self.name

    @property
    def bits(self) -> int:
        """Sign, exponent and mantissa."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is taken from the exponent field."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def largest_exponent(self) -> int:
        """The power of two at the largest finite value."""
        return 2**self.exponent_bits - 1 - self.bias - (self.special == "ieee")

    @property
    def largest(self) -> float:
        """The largest finite value."""
        steps = 2 ** (self.mantissa_bits + 1) - 1 - (self.special == "fn")
        return math.ldexp(steps, self.largest_exponent - self.mantissa_bits)

    @property
    def smallest_normal(self) -> float:
        """Below it, digits are lost one by one."""
        return math.ldexp(1, 1 - self.bias)

    @property
    def smallest(self) -> float:
        """The smallest positive value. Half of it rounds to zero."""
        return math.ldexp(1, 1 - self.bias - self.mantissa_bits)

    @property
    def epsilon(self) -> float:
        """From 1 to the next larger value; a normal number is rounded by at most half of it, relatively."""
        return math.ldexp(1, -self.mantissa_bits)

    @property
    def num_codes(self) -> int:
        """Patterns of the bits."""
        return 2**self.bits

    def fields(self, code: int) -> tuple[int, int, int]:
        """Sign, exponent field and mantissa field of a code. ValueError for a code of too many bits."""
        if not 0 <= code < self.num_codes:
            raise ValueError(
                f"code {code} is none of {self.name}'s {self.bits} bits (0 to {self.num_codes - 1:,})"
            )
        mantissa = code & (2**self.mantissa_bits - 1)
        exponent = (code >> self.mantissa_bits) & (2**self.exponent_bits - 1)
        return code >> (self.bits - 1), exponent, mantissa

    def decode(self, code: int) -> float:
        """The value of a code."""
        sign, exponent, mantissa = self.fields(code)
        top = exponent == 2**self.exponent_bits - 1
        if top and self.special == "ieee":
            value = math.nan if mantissa else math.inf
        elif top and self.special == "fn" and mantissa == 2**self.mantissa_bits - 1:
            value = math.nan
        else:
            steps = mantissa + (2**self.mantissa_bits if exponent else 0)
            value = math.ldexp(steps, max(exponent, 1) - self.bias - self.mantissa_bits)
        return -value if sign else value

    def round(self, value: float, *, saturate: bool = False) -> float:
        """The nearest value of the format; from the middle, the even one.

        saturate: what is too large becomes the largest value, even where the format knows infinity.
        """
        if math.isnan(value):
            if self.special == "all":
                raise ValueError(f"{self.name} has no code for NaN: a NaN here is a mistake made before")
            return math.nan
        bound = self.largest if saturate or self.special != "ieee" else math.inf
        if math.isinf(value):
            return math.copysign(bound, value)
        step = math.ldexp(1, self._exponent(value) - self.mantissa_bits)  # from one value to the next
        nearest = round(abs(value) / step) * step  # Python, too, rounds a middle to the even one
        return math.copysign(nearest if nearest <= self.largest else bound, value)

    def _exponent(self, value: float) -> int:
        """Of the power of two at or below |value|; among subnormal numbers, of the smallest normal one."""
        return max(math.frexp(value)[1] - 1, 1 - self.bias) if value else 1 - self.bias

    def encode(self, value: float, *, saturate: bool = False) -> int:
        """The code of the nearest value."""
        rounded = self.round(value, saturate=saturate)
        sign = int(math.copysign(1, rounded) < 0) << (self.bits - 1)
        if math.isnan(rounded):
            return 2 ** (self.bits - 1) - 1
        if math.isinf(rounded):
            return sign | (2**self.exponent_bits - 1) << self.mantissa_bits
        exponent = self._exponent(rounded)
        steps = int(abs(rounded) / math.ldexp(1, exponent - self.mantissa_bits))
        # Codes count the values from zero up: each power of two is 2^m further.
        return sign | steps + ((exponent + self.bias - 1) << self.mantissa_bits)

    def pattern(self, value: float) -> str:
        """The bits of the nearest value as text, sign, exponent and mantissa apart: ``"0 0101 101"``."""
        bits = format(self.encode(value), f"0{self.bits}b")
        return f"{bits[0]} {bits[1 : 1 + self.exponent_bits]} {bits[1 + self.exponent_bits :]}"


def _formats() -> dict[str, FloatFormat]:
    ieee = "IEEE 754-2019, section 3.6"
    eight = "Micikevicius et al. 2022, arXiv 2209.05433, table 1"
    base = [
        FloatFormat("fp32", 8, 23, "ieee", ieee),
        FloatFormat("tf32", 8, 10, "ieee", "NVIDIA A100 whitepaper, 2020: TensorFloat-32"),
        FloatFormat("bf16", 8, 7, "ieee", "Kalamkar et al. 2019, arXiv 1905.12322, section 3"),
        FloatFormat("fp16", 5, 10, "ieee", ieee),
        FloatFormat("e5m2", 5, 2, "ieee", eight),
        FloatFormat("e4m3", 4, 3, "fn", eight),
        FloatFormat("e2m1", 2, 1, "all", "OCP Microscaling Formats (MX) v1.0, 2023, section 5.3.3"),
    ]
    return {each.name: each for each in base}


FORMATS = _formats()


def float_format(name: str | FloatFormat) -> FloatFormat:
    """A format by name; ``ValueError`` with the nearest for an unknown one."""
    if isinstance(name, FloatFormat):
        return name
    check_choice("format", name, FORMATS)
    return FORMATS[name]
