"""AWQ: give the weights that matter a finer grid. (Lin et al., arXiv 2306.00978)

Some inputs of a layer are far larger than others, and a weight's error counts times its input. Keeping 1 % of
the weights in 16 bits, those of the largest *inputs* (not the largest weights), repairs most of the damage
(table 1 of the paper). But mixed formats are slow. A product gives a way round::

    y = W x = (W diag(s)) (diag(1/s) x)

Multiply the weights of an important input by s > 1 before rounding. The group's scale hardly changes as long
as its largest weight is another one, so the error of the rounding stays what it was, and is divided by s on
the way out (equation 2). Make s too large, and the group's scale grows for all others. So s is searched, with
one number for the whole layer (equation 5)::

    s = magnitude^a        magnitude: mean |x| of each input over some text,   a from 0 (as if nothing) to 1

and that a is taken whose output is nearest to the layer's own. Nothing is trained, and little text is enough.
Only the size of the inputs is used, so it cannot overfit much. What has become of 1/s: here the layer
multiplies its input by it. In a deployed model it is folded into what comes before (the norm's weight, the
matrix above), and costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workshop.compress.quantize import Grid, Quantized, round_to_nearest


@dataclass(frozen=True)
class Scaled:
    """What the search found: the quantized ``W diag(s)``, and s.

    ``errors`` holds the layer's squared output error by exponent, relative to the squared output.
    """

    quantized: Quantized
    scale: Tensor
    exponent: float
    errors: dict[float, float]

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The matrix that acts on the inputs as they are: (rows, columns)."""
        return (self.quantized.dequantize() / self.scale).to(dtype)


def input_scale(magnitude: Tensor, exponent: float, weight: Tensor | None = None) -> Tensor:
    """s for one exponent: magnitude^a, brought to a middle of 1 (its largest times its smallest).

    With ``weight`` (columns,), the size of each input's weights, it is magnitude^a / weight^(1-a): large
    weights are held back. The paper has no such term; the authors' code and its relatives do.
    """
    scale = magnitude.clamp(min=1e-8).pow(exponent)
    if weight is not None:
        scale = scale / weight.clamp(min=1e-8).pow(1 - exponent)
    scale = scale.clamp(1e-4, 1e4)
    return scale / (scale.max() * scale.min()).sqrt()


def weight_sizes(weight: Tensor, grid: Grid) -> Tensor:
    """How large an input's weights are within their groups, from 0 to 1: (columns,)."""
    rows, columns = weight.shape
    groups = weight.float().abs().reshape(rows, -1, grid.columns_of_group(columns))
    return (groups / groups.amax(-1, keepdim=True).clamp(min=1e-12)).reshape(rows, columns).mean(0)


def awq(
    weight: Tensor,
    hessian: Tensor,
    magnitude: Tensor,
    grid: Grid,
    num_steps: int = 20,
    by_weight: bool = False,
) -> Scaled:
    """Search the exponent, and round with it.

    Args:
        weight: (rows, columns).
        hessian: (columns, columns), mean of x x^T: with D the change of the weights, the squared error of the
            outputs is the trace of D H D^T, so no inputs need be kept.
        magnitude: (columns,), mean of |x|.
        grid: bits, groups.
        num_steps: exponents tried are 0, 1/num_steps, ..., 1.
        by_weight: see `input_scale`.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps = {num_steps}: at least 1, which tries exponents 0 and 1")
    weight, hessian = weight.float(), hessian.float()
    sizes = weight_sizes(weight, grid) if by_weight else None
    size = _squared(weight, hessian)
    errors: dict[float, float] = {}
    best: Scaled | None = None
    for step in range(num_steps + 1):
        exponent = step / num_steps
        scale = input_scale(magnitude, exponent, sizes)
        quantized = round_to_nearest(weight * scale, grid)
        errors[exponent] = _squared(quantized.dequantize() / scale - weight, hessian) / size
        if best is None or errors[exponent] < errors[best.exponent]:
            best = Scaled(quantized, scale, exponent, errors)
    assert best is not None
    return best


def _squared(change: Tensor, hessian: Tensor) -> float:
    """Mean squared output of a matrix: the trace of D H D^T."""
    return float(((change @ hessian) * change).sum())


def fold(norm_weight: Tensor, weights: list[Tensor], scale: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Move 1/s from the inputs of some layers into the weight of the norm before them.

    All layers that read the norm must share s. ``norm_weight``: (columns,); ``weights``: each (rows,
    columns). Norm and layers together compute what they did before, and nothing more.
    """
    return norm_weight / scale, [weight * scale for weight in weights]
