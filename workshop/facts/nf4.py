"""NF4: sixteen values for weights that look like draws from a normal distribution.

Four bits name sixteen values. Which sixteen? Weights of a trained layer look normal, with mean zero. So take
values that a normal distribution visits equally often: its quantiles, scaled to [-1, 1]. A block of weights
is divided by its largest magnitude and each weight goes to the nearest of the sixteen (Dettmers et al. 2023,
arXiv 2305.14314, section 3 and equation 4).

Equal steps on both sides of zero would have no zero, and zero must be exact (padding, pruned weights). So the
two sides are made apart: eight values from the positive half, seven from the negative half, and zero.

    positive   Q(p) at the first 8 of 9 equally spaced p from d to 1/2 (the ninth, 1/2, would give zero)
    negative  -Q(p) at the first 7 of 8, the same way
    all        divided by the largest, Q(d)

Q is the inverse of the normal distribution function. It is infinite at 1, so the outermost p is a little
below it: d is the mean of 1 - 1/32 and 1 - 1/30, half a step in from the end for sixteen and for fifteen
values (0.9677083, `offset` in bitsandbytes' `create_normal_map`).

`NF4_VALUES` are the values as the paper prints them (appendix E), numbers of fp32. `nf4_from_quantiles`
derives them again, equal to 2e-7: the paper's were rounded on the way.
"""

from __future__ import annotations

import itertools
from statistics import NormalDist

NF4_VALUES = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""The value of each code, 0 to 15, in rising order; code 7 is zero."""

NF4_MIDPOINTS = tuple((lower + upper) / 2 for lower, upper in itertools.pairwise(NF4_VALUES))
"""Halfway between neighbours: a number takes code c if c of these fifteen lie below it."""

BLOCK, BLOCK_OF_SCALES = 64, 256
"""Weights that share a scale; under double quantization, scales that share one of their own."""

NF4_OFFSET = ((1 - 1 / 32) + (1 - 1 / 30)) / 2


def nf4_bits(double: bool) -> float:
    """Bits a weight takes with its share of the scales: 4.5, or 4.127 with double quantization.

    An fp32 scale a block; or 8 bits for it, and an fp32 scale for each 256 of those (section 3).
    """
    return 4 + (8 + 32 / BLOCK_OF_SCALES if double else 32) / BLOCK


def nf4_from_quantiles(offset: float = NF4_OFFSET) -> tuple[float, ...]:
    """The sixteen values from quantiles of the normal distribution, in rising order.

    ``offset``: the probability of the outermost quantile, between 1/2 and 1 (both excluded; ValueError else).
    """
    if not 0.5 < offset < 1:
        raise ValueError(f"offset is {offset}: a quantile between 1/2 (zero) and 1 (infinite) is needed")
    normal = NormalDist()

    def half(steps: int) -> list[float]:
        return [normal.inv_cdf(offset + (0.5 - offset) * step / steps) for step in range(steps)]

    values = sorted(half(8) + [0.0] + [-value for value in half(7)])
    return tuple(value / values[-1] for value in values)
