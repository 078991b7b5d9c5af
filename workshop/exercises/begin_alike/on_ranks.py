"""Call the learner's `begin_alike` on a model with a trained and a frozen parameter and a buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from workshop.exercises.engine.group import join, line_of_wait
from workshop.launch.report import report


class ThreeNumbers(nn.Module):
    """Rank r's numbers are r + 1, 10 (r + 1) and 100 (r + 1)."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0 + rank]))
        self.frozen = nn.Parameter(torch.tensor([10.0 * (1 + rank)]), requires_grad=False)
        self.register_buffer("running_mean", torch.tensor([100.0 * (1 + rank)]))


def try_on_rank(begin_alike: Callable[[nn.Module], Any]) -> None:
    """Report the numbers before and after."""
    join()
    model = ThreeNumbers(dist.get_rank())
    began_with = numbers(model)
    waited_at = line_of_wait(begin_alike, model)
    report(check={"began_with": began_with, "held": numbers(model), "waited_at": waited_at})


def numbers(model: nn.Module) -> dict[str, float]:
    """The numbers by name."""
    return {name: tensor.item() for name, tensor in model.state_dict().items()}
