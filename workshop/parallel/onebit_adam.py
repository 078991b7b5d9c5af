"""1-bit Adam: Adam's steps for one bit a number.  (Tang et al. 2021, arXiv 2102.02888, algorithm 1)

Error feedback needs an optimizer that is linear in the gradient: what is late then has the same effect as
what is in time. Adam is not. It divides by the root of the squared gradients' mean, and a late error squared
is something else. The way out is an observation: the second moment v settles early in training. So:

* **warm-up**: plain Adam, gradients averaged in full, until v has settled (`warmup` steps);
* **then** v is frozen. What is left is momentum SGD with a fixed rate for each parameter, which is linear::

      m_rank = beta1 m + (1 - beta1) g_rank            each rank with its own gradient
      m      = sign mean over ranks of m_rank          1 bit a number, error feedback (`signs.SignMean`)
      w     -= lr m / (sqrt(v) + eps)

All ranks decode the same m, so the copies stay one model. Gradients are never sent after the warm-up; do not
wrap the model in DDP. For BERT-Large the paper freezes v after 23,000 steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workshop.facts.checks import check_positive
from workshop.parallel.signs import SignMean


class OneBitAdam(torch.optim.Optimizer):
    """Adam (no weight decay) for data-parallel ranks that begin alike; it averages by itself.

    params: the model's, as one list. lr, betas, eps: Adam's.
    warmup: steps of plain Adam before v is frozen.
    error_feedback: False forgets what one bit leaves out; to see what that does.

    Raises ValueError for a warm-up of no steps.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        *,
        warmup: int = 100,
        error_feedback: bool = True,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        check_positive("warmup", warmup)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": 1e-8})
        self.parameters = [p for entry in self.param_groups for p in entry["params"] if p.requires_grad]
        self.warmup, self.group, self.steps = warmup, group, 0
        size = sum(parameter.numel() for parameter in self.parameters)
        self.momentum = torch.zeros(size, device=self.parameters[0].device)
        self.variance = torch.zeros_like(self.momentum)
        self.mean = SignMean(size, group, error_feedback)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update, with whatever is to be sent."""
        if closure is not None:
            raise ValueError("step(closure): call backward yourself, once, before step()")
        self.steps += 1
        entry = self.param_groups[0]
        first, second = entry["betas"]
        gradient = self._flat_gradient()
        if self.steps <= self.warmup:
            dist.all_reduce(gradient, group=self.group)
            gradient /= dist.get_world_size(self.group)
            self.variance.lerp_(gradient.square(), 1 - second)
            self.momentum.lerp_(gradient, 1 - first)
        else:
            self.momentum = self.mean(self.momentum.lerp(gradient, 1 - first))
        corrected = self.variance / (1 - second ** min(self.steps, self.warmup))  # frozen with v
        update = self.momentum / (1 - first**self.steps) / (corrected.sqrt() + entry["eps"])
        pieces = update.split([parameter.numel() for parameter in self.parameters])
        for parameter, piece in zip(self.parameters, pieces, strict=True):
            parameter -= entry["lr"] * piece.view_as(parameter)

    def _flat_gradient(self) -> Tensor:
        return torch.cat(
            [
                (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).flatten().float()
                for parameter in self.parameters
            ]
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything this rank needs to go on, its own errors included: each rank saves its own."""
        kept = ("steps", "momentum", "variance")
        errors = {"worker_error": self.mean.worker_error, "server_error": self.mean.server_error}
        return {**super().state_dict(), "one_bit": {name: getattr(self, name) for name in kept} | errors}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of `state_dict`, on the same number of ranks."""
        own = dict(state_dict["one_bit"])
        self.mean.worker_error, self.mean.server_error = own.pop("worker_error"), own.pop("server_error")
        for name, value in own.items():
            setattr(self, name, value)
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "one_bit"})
