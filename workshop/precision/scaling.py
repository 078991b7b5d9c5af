r"""Scales for FP8: one for a tensor, a row or a block; from what is there, or from what was there before.

E4M3 has its digits between 2^-6 and 448. A tensor's numbers lie elsewhere. So they are multiplied into that
range before they are rounded, and the product is divided again (Micikevicius et al. 2022, arXiv 2209.05433,
section 3.2)::

    scale = amax / largest        x8 = round(x / scale)        x ~ x8 * scale

Who shares a scale is the *granularity*:

=========  =======================================  ==================================================
how        numbers that share a scale               who does so
=========  =======================================  ==================================================
tensor     all of them                              Transformer Engine's first recipes
row        a row of A, a column of B: the sum runs  torchao ``rowwise``, FBGEMM
           over numbers with the same scales
block      1 x 128 of inputs and gradients,         DeepSeek-V3 (arXiv 2412.19437, section 3.3.2)
           128 x 128 of weights
mx         32 along the sum, a power of two         MXFP8 (`precision.blocks`)
=========  =======================================  ==================================================

The last two cut along the sum, so a matrix unit must multiply scales in as it goes; on Hopper that costs
speed, on Blackwell MX is in the hardware.

When amax is looked at is the other question. *Current* scaling looks at the tensor itself: exact, but one
more pass over it before it can be rounded. *Delayed* scaling takes the largest amax of the last steps, which
is known before the tensor is there, so the kernel that makes the tensor can round it too. It is wrong when
a tensor grows: what is too large is cut (`AmaxHistory`).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from workshop.facts.checks import check_choice
from workshop.facts.formats import float_format
from workshop.precision.blocks import mx_scale
from workshop.precision.formats import torch_dtype

GRANULARITIES = ("tensor", "row", "block", "mx")
BLOCK = 128  # of DeepSeek-V3
MX_BLOCK = 32


def scale_of(amax: Tensor, form: str, *, power_of_two: bool = False) -> Tensor:
    """What to divide by, so that amax becomes the format's largest value; 1 where amax is zero.

    amax: any shape, which the scales have too.
    power_of_two: rounded up to one, which costs no digits (Transformer Engine's ``pow_2_scale``).
    """
    amax = amax.float()
    scale = mx_scale(amax, form, "ceil") if power_of_two else amax / float_format(form).largest
    return scale.where(amax > 0, torch.ones_like(scale)).clamp(min=torch.finfo(torch.float32).tiny)


def amax_by(x: Tensor, granularity: str, *, weight: bool = False) -> Tensor:
    """The largest magnitude of each group of a matrix (rows, depth), spread so that it broadcasts to x.

    The sum of the product runs over the depth, the last dim. weight: for "block", squares of 128 x 128
    rather than 1 x 128.
    """
    check_choice("granularity", granularity, GRANULARITIES)
    magnitude = x.detach().abs().float()
    if granularity == "tensor":
        return magnitude.amax().view(1, 1)
    if granularity == "row":
        return magnitude.amax(-1, keepdim=True)
    size = BLOCK if granularity == "block" else MX_BLOCK
    tall = size if weight and granularity == "block" else 1
    rows, depth = x.shape
    padded = F.pad(magnitude, (0, -depth % size, 0, -rows % tall))
    blocks = padded.view(padded.shape[0] // tall, tall, padded.shape[1] // size, size).amax((1, 3))
    return blocks.repeat_interleave(tall, 0)[:rows].repeat_interleave(size, 1)[:, :depth]


class Operand(NamedTuple):
    """A matrix as a product reads it: ``values`` in a narrow type, and the scale to multiply them with.

    scale: fp32; one number for the matrix, (rows, 1), or as large as the matrix (blocks along the depth).
    """

    values: Tensor
    scale: Tensor

    def decode(self) -> Tensor:
        """The numbers, fp32."""
        return self.values.float() * self.scale

    def t(self) -> Operand:
        """The transposed matrix."""
        return Operand(self.values.t(), self.scale.t())


def round_by(x: Tensor, form: str, scale: Tensor) -> Operand:
    """x / scale in a format, what is too large cut down to the largest value.

    x: (rows, depth); scale: what divides it by broadcasting, (1, 1), (rows, 1) or (rows, depth).
    """
    largest = float_format(form).largest
    return Operand((x.detach().float() / scale).clamp(-largest, largest).to(torch_dtype(form)), scale)


def quantize(x: Tensor, form: str, granularity: str, *, weight: bool = False) -> Operand:
    """A matrix (rows, depth) in a format, under current scaling."""
    amax = amax_by(x, granularity, weight=weight)
    return round_by(x, form, mx_scale(amax, form, "ceil") if granularity == "mx" else scale_of(amax, form))


class AmaxHistory:
    """Delayed scaling of one tensor: the scale comes from the amax of the last ``length`` steps.

    A step is `scale()` (from the past alone), then `record` of the amax that was there. Before anything is
    recorded there is no past, and the first tensor sets its own scale.

    length: steps that are remembered. margin: the scale is 2^margin larger than needed, against growth.
    """

    def __init__(self, form: str, length: int = 16, margin: int = 0) -> None:
        if length < 1:
            raise ValueError(f"an amax history of {length} steps remembers nothing: take 1 or more")
        self.form, self.margin = form, margin
        self.history: deque[Tensor] = deque(maxlen=length)  # on x's device: a number would wait for it

    def scale(self, x: Tensor) -> Tensor:
        """What to divide x by, a scalar tensor; x itself is looked at in the first step only."""
        if not self.history:
            self.record(x)
        amax = torch.stack(tuple(self.history)).amax().to(x.device)
        return scale_of(amax, self.form) * 2.0**self.margin

    def record(self, x: Tensor) -> None:
        """Remember this step's amax; an infinite one counts as none, or it would stay for the whole length.

        x: any shape. Nothing here waits for the device: delayed scaling exists so that nothing does.
        """
        amax = x.detach().abs().amax().float()
        self.history.append(amax.where(amax.isfinite(), torch.zeros_like(amax)))

    def quantize(self, x: Tensor) -> Operand:
        """Round x, (rows, depth), by the past's scale, cut what is too large, and remember x: one step."""
        scale = self.scale(x)
        self.record(x)
        return round_by(x, self.form, scale.view(1, 1))
