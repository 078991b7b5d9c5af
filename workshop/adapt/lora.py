r"""LoRA and DoRA by hand: leave W as it is, and learn a small change beside it.

Fine-tuning changes a matrix W (out x in) by some ΔW. LoRA (Hu et al. 2021, arXiv 2106.09685, equation 3) lets
that change have a low rank r only, and learns its two factors::

    h = W x + (α / r) B A x        A: r x in, random        B: out x r, zero

            x ──────── W (frozen) ──────┐
            └── A (r x in) ── B (out x r) ── α/r ──┴── + ── h

B is zero at first, so the adapted model begins as the old one. r (in + out) weights are trained instead of
in x out; gradients and the optimizer's moments exist for these only, and *that* is the memory it saves: the
frozen W still takes its place, and backward still passes through it. After training, W + (α/r) B A is one
matrix again (`merge_lora`), and nothing is slower than before.

α/r keeps the size of the change about the same when r is varied (section 4.1), so that the learning rate need
not be searched again.

DoRA (Liu et al. 2024, arXiv 2402.09353, equation 5) takes a matrix as directions and lengths. LoRA learns the
directions; the length of each row is a weight of its own::

    h = m / ‖V‖ · V x              V = W + (α / r) B A        m: one length for each output, at first ‖W‖

where ‖V‖ (of each row, in the layout of ``nn.Linear``) counts as a constant in backward (section 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workshop.facts.checks import check_positive


class LoRALinear(nn.Module):
    """A frozen linear map with a low-rank change beside it: (..., in) -> (..., out).

    Args:
        base: any module with ``in_features`` and ``out_features``; a plain or a quantized linear map.
        rank: of the change.
        alpha: its scale is alpha / rank.

    The change is kept and computed in fp32, whatever the base computes in: small steps are lost in bf16.
    """

    def __init__(self, base: nn.Module, rank: int = 8, alpha: float = 16.0) -> None:
        super().__init__()
        check_positive("rank", rank)
        self.base = base.requires_grad_(False)
        self.scale = alpha / rank
        device = next(chain(base.parameters(), base.buffers())).device
        self.lora_a = nn.Parameter(torch.empty(rank, int(base.in_features), device=device))  # type: ignore[arg-type]
        self.lora_b = nn.Parameter(torch.zeros(int(base.out_features), rank, device=device))  # type: ignore[arg-type]
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def change(self) -> Tensor:
        """(α / r) B A, of W's shape (out, in)."""
        return self.scale * (self.lora_b @ self.lora_a)

    def beside(self, x: Tensor) -> Tensor:
        """(α / r) B A x, without ever making B A: r (in + out) products a token instead of in x out."""
        return self.scale * F.linear(F.linear(x.to(self.lora_a.dtype), self.lora_a), self.lora_b)

    def forward(self, x: Tensor) -> Tensor:
        """W x and the change beside it."""
        h = self.base(x)
        return (h + self.beside(x)).to(h.dtype)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One plain linear map that does the same; the sum is made in fp32 and rounded once."""
        plain = _plain(self.base)
        plain.weight.copy_(self._merged_weight(plain.weight.float()))
        return plain

    def _merged_weight(self, weight: Tensor) -> Tensor:
        return weight + self.change()


class DoRALinear(LoRALinear):
    """LoRA that learns the length of each output's row apart from its direction. The base must be plain."""

    def __init__(self, base: nn.Linear, rank: int = 8, alpha: float = 16.0) -> None:
        if not isinstance(base, nn.Linear) or hasattr(base.weight, "quant_state"):
            raise ValueError(f"DoRA reads the rows of W: {type(base).__name__} is not a plain nn.Linear")
        super().__init__(base, rank, alpha)
        self.magnitude = nn.Parameter(base.weight.detach().float().norm(dim=1))

    def forward(self, x: Tensor) -> Tensor:
        """Directions of unit length, each times its magnitude."""
        base: nn.Linear = self.base  # type: ignore[assignment]
        length = (base.weight + self.change().detach()).norm(dim=1)  # a constant in backward
        h = self.magnitude / length * (F.linear(x, base.weight) + self.beside(x))
        return (h if base.bias is None else h + base.bias).to(x.dtype)

    def _merged_weight(self, weight: Tensor) -> Tensor:
        directions = weight + self.change()
        return (self.magnitude / directions.norm(dim=1))[:, None] * directions


def dense_weight(linear: nn.Module) -> Tensor:
    """The weight (out, in) of a linear map, de-quantized where it is kept in four bits."""
    unpack = getattr(linear, "dequantized_weight", None)
    if unpack is not None:  # qlora.NF4Linear
        return unpack()
    weight: Tensor = linear.weight.detach()  # type: ignore[operator]
    state = getattr(linear.weight, "quant_state", None)
    if state is None:
        return weight
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight, state)


def _plain(base: nn.Module) -> nn.Linear:
    """A plain copy of a linear map."""
    weight, bias = dense_weight(base), getattr(base, "bias", None)
    plain = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, weight.device, weight.dtype)
    with torch.no_grad():
        plain.weight.copy_(weight)
        if bias is not None:
            plain.bias.copy_(bias)
    return plain


def add_lora(
    model: nn.Module,
    rank: int = 8,
    alpha: float = 16.0,
    targets: Sequence[str] = ("q_proj", "v_proj"),
    dora: bool = False,
) -> nn.Module:
    """Freeze a model and put LoRA (or DoRA) beside each linear map whose last name is a target; in place.

    Raises ValueError: no module has such a name; the message lists the linear maps that there are.
    """
    model.requires_grad_(False)
    kind = DoRALinear if dora else LoRALinear
    adapted = [
        name
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in targets and hasattr(module, "in_features")
    ]
    missing = set(targets) - {name.rpartition(".")[2] for name in adapted}
    if missing:
        there = {n.rpartition(".")[2] for n, m in model.named_modules() if hasattr(m, "in_features")}
        raise ValueError(
            f"no linear map is called {', '.join(sorted(missing))}; there are {', '.join(sorted(there))}"
        )
    for name in adapted:
        model.set_submodule(name, kind(model.get_submodule(name), rank, alpha))  # type: ignore[arg-type]
    return model


def merge_lora(model: nn.Module) -> nn.Module:
    """Every LoRA or DoRA map becomes one plain linear map again; in place."""
    for name, module in list(model.named_modules()):
        if isinstance(module, LoRALinear):
            model.set_submodule(name, module.merged())
    return model


def num_trainable(model: nn.Module) -> int:
    """Weights that an optimizer would train."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
