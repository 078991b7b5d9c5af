"""Call the learner's `average_gradients` on every rank: on gradients one can read, then on a real model's.

The real case has a single-process twin: the same weights, and the ranks' batches joined into one. The
mean loss over the joined batch has the mean of the ranks' gradients, as long as the ranks' batches are of
one size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from workshop.exercises.engine.group import all_say, join, line_of_wait
from workshop.launch.report import report

BATCH, WIDTH = 6, 5


class TwoLayers(nn.Module):
    """A small model with a layer that the forward pass leaves out: its gradients stay None on every rank."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, width) to (batch, 1)."""
        return self.last(torch.tanh(self.first(x)))


def try_on_rank(average_gradients: Callable[[nn.Module], Any]) -> None:
    """Report the readable gradients and, if all ranks are right so far, the difference to the twin."""
    join()
    reported = _readable_case(average_gradients)
    right = reported["waited_at"] is None and reported["held"] == reported["wanted"]
    if reported["waited_at"] is None and all_say(right):
        reported["twin"] = _against_twin(average_gradients)
    report(check=reported)


def _readable_case(average_gradients: Callable[[nn.Module], Any]) -> dict[str, Any]:
    """Rank r holds 2r + 1 in the weight's gradient and ten times that in the bias's: the means are exact."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = nn.Linear(1, 1)
    model.weight.grad = torch.full_like(model.weight, 2.0 * rank + 1)
    model.bias.grad = torch.full_like(model.bias, 10 * (2.0 * rank + 1))
    began_with = _gradients(model)
    waited_at = line_of_wait(average_gradients, model)
    return {
        "waited_at": waited_at,
        "began_with": began_with,
        "held": _gradients(model),
        "wanted": {"weight": float(world_size), "bias": 10.0 * world_size},  # mean of 1, 3, ..., 2N - 1 is N
        "twin": None,
    }


def _gradients(model: nn.Module) -> dict[str, float | None]:
    return {name: None if p.grad is None else p.grad.item() for name, p in model.named_parameters()}


def _against_twin(average_gradients: Callable[[nn.Module], Any]) -> dict[str, Any]:
    """Largest difference of a gradient to that of one process with the joined batch, and where it is."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batches = [_batch(seed) for seed in range(world_size)]
    model, twin = _model(), _model()
    _backward(model, *batches[rank])
    waited_at = line_of_wait(average_gradients, model)
    _backward(twin, *(torch.cat(parts) for parts in zip(*batches, strict=True)))
    differences = {}
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        if theirs.grad is not None:
            mine_grad = torch.zeros_like(theirs) if mine.grad is None else mine.grad
            differences[name] = float((mine_grad - theirs.grad).abs().max() / theirs.grad.abs().max())
    worst = max(differences, key=lambda name: differences[name])
    return {"waited_at": waited_at, "worst": worst, "difference": differences[worst]}


def _model() -> TwoLayers:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(
            0
        )  # the same weights everywhere: that is what broadcast is for, and not this exercise
        return TwoLayers()


def _batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, 1, generator=generator)


def _backward(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    nn.functional.mse_loss(model(x), y).backward()
