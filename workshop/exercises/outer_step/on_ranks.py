"""Call the learner's `outer_step` for three rounds on numbers one can read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from workshop.exercises.engine.group import join, line_of_wait
from workshop.exercises.outer_step.check import ANCHOR, BETA, LR, MOVES, ROUNDS
from workshop.launch.report import report


def try_on_rank(outer_step: Callable[..., Any]) -> None:
    """Report anchor, weights and momentum after each round."""
    join()
    anchor, weights, momentum = torch.tensor([ANCHOR]), torch.tensor([ANCHOR]), torch.zeros(1)
    rounds: list[dict[str, float]] = []

    def meet() -> None:
        for _ in range(ROUNDS):
            weights.add_(MOVES[dist.get_rank()])
            outer_step(anchor, weights, momentum, LR, BETA)
            held = {"momentum": momentum, "anchor": anchor, "weights": weights}
            rounds.append({name: tensor.item() for name, tensor in held.items()})

    waited_at = line_of_wait(meet)
    report(check={"rounds": rounds, "waited_at": waited_at})
