r"""Mixed precision by hand: 16 bits where the work is, 32 where digits add up.

Training in fp16 goes wrong in three places, and each has its own cure (Micikevicius et al. 2018, arXiv
1710.03740, section 3):

1. **Updates vanish.** A weight of 1 has neighbours at 1 +- 0.001 in fp16 (at +- 0.008 in bf16). An update
   smaller than half of that changes nothing, however often it is made. Cure: a *master copy* of the weights
   in fp32 takes the updates; the 16-bit weights are made from it, anew after every step (`MasterWeights`).
2. **Gradients vanish.** Below 6e-8 fp16 has nothing. Cure: *loss scaling*. The loss is multiplied by S before
   backward, so by the chain rule every gradient is S times larger; the master's gradient is divided by S
   again, in fp32 (`LossScaler`). S is found by trying: it doubles after N good steps; where a gradient
   overflows, the step is skipped and S halved.
3. **Sums lose digits.** Products are added up in fp32 by the matrix units; norms, softmax and loss are
   computed in fp32. That is a list of operators (`torch.autocast` has one), or is written into the model.

bf16 has fp32's exponent: it needs the first cure, and not the second.

There are two arrangements, with the same 16 bytes a parameter under Adam (fp32 moments: 8) ::

    master copies   16-bit weights 2 + 16-bit gradients 2 + fp32 master 4 + 8    DeepSpeed, Megatron-LM, here
    autocast        fp32 weights 4 + fp32 gradients 4 + 8, and 2 more while      torch.autocast
                    forward's 16-bit casts wait for backward

In both the weights live twice. `MixedTraining` does either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workshop.facts.checks import check_choice
from workshop.facts.formats import float_format
from workshop.precision.formats import TORCH_DTYPES

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class GradientCount:
    """Gradients of one step: how many numbers, how many of them zero, how many infinite or NaN."""

    numbers: int
    zeros: int
    not_finite: int

    @property
    def zero_share(self) -> float:
        """Of all numbers."""
        return self.zeros / max(self.numbers, 1)


def count_gradients(gradients: Iterable[Tensor]) -> GradientCount:
    """Zeros, and what is not finite, in some gradients of any shapes."""
    numbers = zeros = not_finite = 0
    for gradient in gradients:
        numbers += gradient.numel()
        zeros += int((gradient == 0).sum())
        not_finite += int((~gradient.isfinite()).sum())
    return GradientCount(numbers, zeros, not_finite)


def sizes_by_power(gradients: Iterable[Tensor], lowest: int, highest: int) -> list[int]:
    """How many gradients have a magnitude from 2^k to 2^(k+1), for k from lowest up to below highest.

    gradients: of any shapes. Zeros and what lies outside are not counted.
    """
    counts = torch.zeros(highest - lowest, dtype=torch.float64)
    for gradient in gradients:
        powers = torch.log2(gradient.detach().float().abs().flatten().cpu())
        counts += torch.histc(
            powers[powers.isfinite()].floor(), highest - lowest, lowest - 0.5, highest - 0.5
        )
    return [int(count) for count in counts]


class LossScaler:
    """Dynamic loss scaling: double after `interval` good steps in a row, halve on overflow and skip the step.

    The plain version of `torch.amp.GradScaler`, with its numbers as the defaults.
    """

    def __init__(
        self, scale: float = 2.0**16, interval: int = 2000, growth: float = 2.0, backoff: float = 0.5
    ) -> None:
        if scale <= 0 or interval < 1 or growth <= 1 or not 0 < backoff < 1:
            raise ValueError(
                f"scale {scale}, interval {interval}, growth {growth}, backoff {backoff}: the scale is above "
                "zero, the interval one step or more, growth above 1, backoff between 0 and 1"
            )
        self.value, self.interval, self.growth, self.backoff = scale, interval, growth, backoff
        self.good_steps = 0

    def scale(self, loss: Tensor) -> Tensor:
        """The loss, a scalar, to call `backward` on: fp32, for S times a loss may be too large for fp16."""
        return loss.float() * self.value

    def unscale(self, gradients: Sequence[Tensor]) -> bool:
        """Divide fp32 gradients, of any shapes, by S, in place; False if one of them is infinite or NaN."""
        for gradient in gradients:
            gradient.mul_(1 / self.value)
        return all(bool(gradient.isfinite().all()) for gradient in gradients)

    def update(self, finite: bool) -> None:
        """Find the next S: what became of this step's gradients is all it needs to know."""
        if not finite:
            self.value, self.good_steps = self.value * self.backoff, 0
            return
        self.good_steps += 1
        if self.good_steps == self.interval:
            self.value, self.good_steps = self.value * self.growth, 0


class MasterWeights:
    """An optimizer on fp32 copies of a model's 16-bit parameters.

    model: its floating-point parameters are turned to ``dtype`` in place; the copies are made before. Tied
    parameters stay tied. make_optimizer: of a list of fp32 parameters.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, make_optimizer: MakeOptimizer) -> None:
        masters = {p: nn.Parameter(p.detach().clone().float()) for p in model.parameters()}
        model.to(dtype)  # keeps the parameters' identity, so the pairs stay pairs
        self.pairs = list(masters.items())
        self.optimizer = make_optimizer([master for _, master in self.pairs])

    def take_gradients(self) -> list[Tensor]:
        """Move the model's gradients to the masters, in fp32, and drop the 16-bit ones.

        Returns those of the masters, each in its parameter's shape.
        """
        taken = []
        for parameter, master in self.pairs:
            if parameter.grad is not None:
                master.grad = parameter.grad.float()
                taken.append(master.grad)
            parameter.grad = None
        return taken

    @torch.no_grad()
    def step(self) -> None:
        """Update the masters, then make the 16-bit weights from them."""
        self.optimizer.step()
        for parameter, master in self.pairs:
            parameter.copy_(master)

    def zero_grad(self) -> None:
        """Drop the masters' gradients."""
        self.optimizer.zero_grad()


@dataclass(frozen=True)
class MixedStep:
    """What happened in one step: loss, gradients as backward left them (scaled), S, and was it skipped?"""

    loss: float
    gradients: GradientCount
    scale: float
    skipped: bool


BY_HAND = ("fp16", "bf16")
AUTOCAST = ("amp-fp16", "amp-bf16")
RECIPES = ("fp32", *BY_HAND, *AUTOCAST)


class MixedTraining:
    """A model trained by a recipe: ``step`` after ``step``.

    recipe: "fp32"; "fp16" or "bf16", weights in 16 bits beside fp32 masters; "amp-fp16" or "amp-bf16",
    fp32 weights under `torch.autocast`.
    scaler: a `LossScaler` (by hand) or a `torch.amp.GradScaler` (under autocast); None scales nothing.
    divide_loss: micro-batches that share a step; each one's loss is divided by their number.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: str,
        make_optimizer: MakeOptimizer,
        scaler: LossScaler | torch.amp.GradScaler | None = None,
        divide_loss: int = 1,
    ) -> None:
        check_choice("recipe", recipe, RECIPES)
        if scaler is not None and isinstance(scaler, LossScaler) != (recipe in BY_HAND):
            raise ValueError(
                f"{recipe} with a {type(scaler).__name__}: masters by hand go with LossScaler, autocast with "
                "torch.amp.GradScaler"
            )
        self.model, self.recipe, self.scaler, self.divide_loss = model, recipe, scaler, divide_loss
        self.dtype = TORCH_DTYPES[float_format(recipe.removeprefix("amp-")).name]
        self.masters: MasterWeights | None = None
        if recipe in BY_HAND:
            self.masters = MasterWeights(model, self.dtype, make_optimizer)
            self.optimizer = self.masters.optimizer
        else:
            self.optimizer = make_optimizer(list(model.parameters()))

    def step(self, compute_loss: Callable[[nn.Module], Tensor]) -> MixedStep:
        """One optimizer step on ``compute_loss(model)``, a scalar."""
        device = next(self.model.parameters()).device.type
        inside: Any = torch.autocast(device, self.dtype) if self.recipe in AUTOCAST else nullcontext()
        with inside:
            loss = compute_loss(self.model)
        scale = self._scale()
        scaled = loss / self.divide_loss
        (self.scaler.scale(scaled) if self.scaler else scaled).backward()
        gradients = count_gradients(p.grad for p in self.model.parameters() if p.grad is not None)
        finite = self._step_by_hand() if self.masters else self._step_by_torch(gradients)
        return MixedStep(float(loss.detach()), gradients, scale, not finite)

    def _scale(self) -> float:
        if isinstance(self.scaler, LossScaler):
            return self.scaler.value
        return self.scaler.get_scale() if self.scaler else 1.0

    def _step_by_hand(self) -> bool:
        assert self.masters is not None
        finite, gradients = True, self.masters.take_gradients()
        if isinstance(self.scaler, LossScaler):
            finite = self.scaler.unscale(gradients)
            self.scaler.update(finite)
        if finite:
            self.masters.step()
        self.masters.zero_grad()
        return finite

    def _step_by_torch(self, gradients: GradientCount) -> bool:
        if isinstance(self.scaler, torch.amp.GradScaler):
            self.scaler.step(self.optimizer)  # looks at the gradients itself, and skips by itself
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return self.scaler is None or gradients.not_finite == 0
