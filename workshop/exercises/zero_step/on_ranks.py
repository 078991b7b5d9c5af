"""Call the learner's `zero_step` on every rank, with numbers that one can read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from workshop.exercises.engine.group import join, line_of_wait
from workshop.launch.report import report

PART = 2  # values of a rank's part


def try_on_rank(zero_step: Callable[..., Any]) -> None:
    """Report the weights after one step of plain descent, and how many values the optimizer was given.

    Weight i is 1000 i; the gradient of rank r is (r + 1) (i + 1), so its mean is (N + 1) / 2 times i + 1.
    """
    join()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ones = torch.arange(1.0, PART * world_size + 1)
    weights = 1000 * (ones - 1)
    before = weights.clone()
    updated: list[int] = []

    def update(part: torch.Tensor, gradient: torch.Tensor) -> None:
        updated.append(part.numel())
        part -= gradient

    waited_at = line_of_wait(zero_step, weights, (rank + 1) * ones, update)
    mean = (world_size + 1) / 2
    report(
        check={
            "waited_at": waited_at,
            "part_length": PART,
            "updated": updated,
            "held": weights.tolist(),
            "wanted": (before - mean * ones).tolist(),
            "summed": (before - world_size * mean * ones).tolist(),
        }
    )
