"""Call the learner's `loss_share` on every rank, for three micro-batches with unequal numbers of answers.

The loss sum is a weight times a whole number, so that the gradient can be read: what `backward` leaves in
the weight is that number times the share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from workshop.exercises.engine.group import join, line_of_wait
from workshop.launch.report import report

LENGTH = 9
ANSWERS = ((1, 3, 2), (6, 4, 8))  # answer tokens of each micro-batch, by rank
SUMS = ((2.0, 5.0, 1.0), (9.0, 4.0, 16.0))


def labels_of(count: int) -> torch.Tensor:
    """A row of labels with so many that are not -100; token 0 is one of them."""
    labels = torch.full((1, LENGTH), -100)
    labels[0, LENGTH - count :] = torch.arange(count)
    return labels


def try_on_rank(loss_share: Callable[[torch.Tensor, list[torch.Tensor]], Any]) -> None:
    """Report what each share and each gradient was, and on which line it waited in vain."""
    join()
    rank = dist.get_rank()
    labels = [labels_of(count) for count in ANSWERS[rank]]
    shares: list[float | str] = []
    weight = torch.ones((), requires_grad=True)
    waited_at = None

    def one(loss_sum: torch.Tensor) -> None:
        share = loss_share(loss_sum, [one.clone() for one in labels])
        if not isinstance(share, torch.Tensor) or share.numel() != 1:
            shares.append(f"{type(share).__name__}")
            return
        if share.requires_grad:
            share.sum().backward()
        shares.append(float(share.detach().sum()))

    for loss_sum in SUMS[rank]:
        waited_at = line_of_wait(one, weight * loss_sum)
        if waited_at is not None:
            break
    gradient = None if weight.grad is None else float(weight.grad)
    report(check={"waited_at": waited_at, "shares": shares, "gradient": gradient})
