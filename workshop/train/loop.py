"""The training loop, from top to bottom. What is distributed about it is behind `Ready`'s few names.

A step, on every rank: its share of the global batch, in micro-batches whose gradients add up; the mean over
ranks; a cut to the gradient's norm; the optimizer. Nothing else is in it, and nothing waits for the device
but the line that logs: a loss is a tensor until someone looks at it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from workshop.models.text import TextBatches
from workshop.train.log import Log, NoLog
from workshop.train.ready import Ready
from workshop.train.settings import Settings

if TYPE_CHECKING:
    from workshop.train.checkpoint import Checkpoints


@dataclass(frozen=True)
class Losses:
    """What a training went through: the mean loss over all ranks of each step from ``first_step`` on."""

    first_step: int
    values: list[float] = field(default_factory=list)

    @property
    def last(self) -> float:
        """The loss of the last step; ValueError where there was none."""
        if not self.values:
            raise ValueError(f"no step was taken: step {self.first_step} was the last already")
        return self.values[-1]


def train_loop(
    ready: Ready,
    batches: TextBatches,
    settings: Settings,
    *,
    log: Log | None = None,
    checkpoints: Checkpoints | None = None,
) -> Losses:
    """Train to ``settings.num_steps`` from the last checkpoint, or from the beginning where there is none.

    ``batches``: of this rank; ``step(number)`` yields its micro-batches. ``log``: rank 0's; others give none.
    Returns every step's loss, the same on all ranks.
    """
    log, rates = log or NoLog(), settings.rates()
    first_step = checkpoints.resume(ready, batches) if checkpoints else 0
    ready.model.train()
    losses, began = [], time.perf_counter()
    for step in range(first_step, settings.num_steps):
        ready.set_learning_rate(rates(step))
        loss = ready.gradients(batches.step(step, ready.device), batches.accumulation)
        ready.clip(settings.clip_norm)
        ready.step()
        losses.append(loss)

        done = step + 1
        if done % settings.log_every == 0 or done == settings.num_steps:
            since = min(len(losses), done % settings.log_every or settings.log_every)
            mean_loss = ready.mean(torch.stack(losses[-since:]).mean()).item()  # waits for the device
            seconds, began = time.perf_counter() - began, time.perf_counter()
            tokens_per_second = since * batches.global_batch * batches.seq_len / seconds
            norm = {} if ready.gradient_norm is None else {"gradient_norm": float(ready.gradient_norm)}
            log.write(
                done,
                loss=mean_loss,
                learning_rate=rates(step),
                tokens_per_second=tokens_per_second,
                **norm,
            )
        if checkpoints and settings.save_every and done % settings.save_every == 0:
            checkpoints.save(ready, batches, done)
    return Losses(first_step, ready.mean(torch.stack(losses)).tolist() if losses else [])
