"""Call the learner's `tell_mean` on every rank, and see who said what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from workshop.exercises.engine.group import join, line_of_wait
from workshop.launch.report import report


def try_on_rank(tell_mean: Callable[..., Any]) -> None:
    """Report what was said on this rank, and whether the rank's own loss is still what it was.

    Rank r's loss is 10^r, so that every mistake gives another number.
    """
    join()
    rank = dist.get_rank()
    loss = torch.tensor([10.0**rank])
    spoken: list[float] = []
    waited_at = line_of_wait(tell_mean, loss, lambda value: spoken.append(float(value)))
    report(
        check={
            "waited_at": waited_at,
            "said": spoken,
            "kept": loss.item() == 10.0**rank,
            "mean": sum(10.0**r for r in range(dist.get_world_size())) / dist.get_world_size(),
        }
    )
