r"""Training in FP8: linear layers that multiply 8-bit numbers, swapped into a model in place.

A linear layer is three products, and in FP8 each reads two 8-bit matrices and adds up in fp32::

    forward   y  = x  W^T      x, W in E4M3     more digits: activations and weights lie close together
    dgrad     dx = dy W        dy in E5M2       more range: gradients do not
    wgrad     dW = dy^T x      dy in E5M2

(Micikevicius et al. 2022, arXiv 2209.05433, section 3.1.) Everything else stays: the weight itself is the
master copy in fp32 or bf16, and optimizer, norms, softmax and residuals never see 8 bits. So a swapped layer
has the parameters of the old one, the very same tensors, and its state_dict: a checkpoint does not know.

Each operand needs scales, and may choose how (`Recipe`, `precision.scaling`). A product sums over its depth,
so scales may differ along rows and columns of the result, and along the depth only in blocks. With one scale
for a tensor, a matrix is rounded once and read in two products. With scales by row or block, each product
groups along its own depth, and x is rounded once along its features (forward) and once along its tokens
(wgrad).

`product` is the 8-bit matrix product. On a GPU with 8-bit units it is `torch._scaled_mm`. Elsewhere it is
*emulated*: the numbers are rounded to FP8, brought back to fp32, and multiplied there. The operands are the
same to the last bit; the sum is fp32's. It is slower than no FP8 at all, and shows what FP8 does to the loss.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workshop.facts.checks import check_choice
from workshop.facts.formats import float_format
from workshop.precision.scaling import GRANULARITIES, AmaxHistory, Operand, quantize, round_by

SCALINGS = ("none", "delayed", *GRANULARITIES)
THROUGH = ("auto", "emulated", "scaled_mm")


@dataclass(frozen=True)
class Recipe:
    """How a linear layer multiplies.

    scaling: "delayed", current by "tensor", "row", "block" or "mx", or "none" (no scale at all).
    forward, backward: formats of inputs and weights, and of gradients. wgrad: the format of gradients in the
    weights' own product (where one rounding serves both, ``backward`` again); "" leaves them in fp32 there,
    which is more careful.
    history, margin: of delayed scaling. through: "auto" takes `torch._scaled_mm` on a GPU where scaling is by
    tensor, row or delayed, and emulates elsewhere.
    """

    scaling: str = "delayed"
    forward: str = "e4m3"
    backward: str = "e5m2"
    wgrad: str = "e5m2"
    history: int = 16
    margin: int = 0
    through: str = "auto"

    def __post_init__(self) -> None:
        check_choice("scaling", self.scaling, SCALINGS)
        check_choice("through", self.through, THROUGH)
        for name in filter(None, (self.forward, self.backward, self.wgrad)):
            float_format(name)
        if self.through == "scaled_mm" and self.scaling not in ("delayed", "tensor", "row"):
            raise ValueError(
                f"torch._scaled_mm gets its scales by tensor or by row here, not {self.scaling!r}"
            )


BF16 = Recipe("none", "bf16", "bf16", "bf16")
"""The same layers with operands of bf16: what to compare with, for nothing but the operands differs."""


@functools.cache
def runs_scaled_mm(
    device: str,
    by_row: bool = False,
    left: torch.dtype = torch.float8_e4m3fn,
    right: torch.dtype = torch.float8_e4m3fn,
) -> bool:
    """Whether this device multiplies these formats by `torch._scaled_mm`: a product of 16 x 16 is tried."""
    a = torch.ones(16, 16, device=device)
    one = torch.ones((16, 1) if by_row else (), device=device)
    try:
        scales = (one, one.t() if by_row else one)
        torch._scaled_mm(a.to(left), a.to(right).t(), *scales, out_dtype=torch.bfloat16)
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return True


def product(a: Operand, b: Operand, through: str = "auto") -> Tensor:
    """a b^T, added up in fp32: (m, depth) and (n, depth) to (m, n), fp32.

    through: as in `Recipe`. Units want sizes in multiples of 16, and scales by tensor or by row; without
    those it is emulated, or for "scaled_mm" a ValueError says so.
    """
    blocks = a.scale.shape[1] > 1 or b.scale.shape[1] > 1
    if _by_units(a, b, blocks, through):
        return _scaled_mm(a, b)
    if blocks:
        return a.decode() @ b.decode().t()
    return (a.values.float() @ b.values.float().t()) * a.scale * b.scale.t()


def _by_units(a: Operand, b: Operand, blocks: bool, through: str) -> bool:
    device, sizes = a.values.device.type, (*a.values.shape, b.values.shape[0])
    fits = not blocks and all(size % 16 == 0 for size in sizes) and a.values.element_size() == 1
    if through == "scaled_mm":
        if not fits:
            raise ValueError(
                f"torch._scaled_mm takes 8 bits, sizes in multiples of 16 and no blocks; got {sizes}"
            )
        return True
    by_row = a.scale.numel() + b.scale.numel() > 2
    if through != "auto" or not fits or device == "cpu":
        return False
    return runs_scaled_mm(device, by_row, a.values.dtype, b.values.dtype)


def _scaled_mm(a: Operand, b: Operand) -> Tensor:
    """By the device's 8-bit units: the first is read by rows, the second by columns, depth innermost."""
    one, other = a.values.contiguous(), b.values.contiguous().t()
    if a.scale.numel() + b.scale.numel() == 2:
        scales = (a.scale.reshape(()), b.scale.reshape(()))
        return torch._scaled_mm(one, other, *scales, out_dtype=torch.float32)
    rows = (a.scale.expand(one.shape[0], 1).contiguous(), b.scale.expand(other.shape[1], 1).contiguous().t())
    return torch._scaled_mm(one, other, *rows, out_dtype=torch.bfloat16).float()


class _LinearProducts(torch.autograd.Function):
    """The three products of a linear layer; `Fp8Linear` says in which formats and with which scales."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: Fp8Linear) -> Tensor:
        """y = x W^T. What waits for backward is 8 bits wide where one rounding serves two products."""
        ctx.layer, form = layer, layer.recipe.forward
        left, right = layer.operand("input", x, form), layer.operand("weight", weight, form, weight=True)
        if layer.rounds_once:
            ctx.save_for_backward(*left, *right)
        else:
            ctx.save_for_backward(x, weight)
        return product(left, right, layer.recipe.through)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """dx = dy W and dW = dy^T x."""
        layer, recipe, saved = ctx.layer, ctx.layer.recipe, ctx.saved_tensors
        dy = layer.operand("gradient", gradient, recipe.backward)
        if layer.rounds_once:
            x, weight = Operand(*saved[:2]), Operand(*saved[2:])
            dx = product(dy, weight.t(), recipe.through)
            dw = product(dy.t(), x.t(), recipe.through) if recipe.wgrad else gradient.t() @ x.decode()
            return dx, dw, None
        x, weight = saved
        dx = product(dy, layer.operand("", weight.t(), recipe.forward, weight=True), recipe.through)
        if not recipe.wgrad:
            return dx, gradient.t() @ x, None
        sides = layer.operand("", gradient.t(), recipe.wgrad), layer.operand("", x.t(), recipe.forward)
        return dx, product(*sides, recipe.through), None


class Fp8Linear(nn.Linear):
    """`nn.Linear` whose products read 8-bit operands. Parameters and state_dict are `nn.Linear`'s."""

    recipe: Recipe
    histories: dict[str, AmaxHistory]

    @property
    def rounds_once(self) -> bool:
        """Whether an operand's scale is one number, so that its transpose is the same matrix."""
        return self.recipe.scaling in ("none", "delayed", "tensor")

    def operand(self, name: str, x: Tensor, form: str, *, weight: bool = False) -> Operand:
        """A matrix in its format; under delayed scaling by the history of that name."""
        scaling = self.recipe.scaling
        if scaling == "none":
            return round_by(x, form, torch.ones(1, 1, device=x.device))
        if scaling != "delayed":
            return quantize(x, form, scaling, weight=weight)
        if name not in self.histories:
            self.histories[name] = AmaxHistory(form, self.recipe.history, self.recipe.margin)
        return self.histories[name].quantize(x)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features), of x's type."""
        flat = x.reshape(-1, self.in_features).float()
        y = _LinearProducts.apply(flat, self.weight.float(), self)
        y = y if self.bias is None else y + self.bias
        return y.to(x.dtype).view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """Sizes and recipe."""
        return f"{super().extra_repr()}, {self.recipe.scaling}, {self.recipe.forward}/{self.recipe.backward}"
