"""Save a small training with the learner's `state_of`, go on with their `go_on`, and compare its parts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workshop.exercises.engine.group import join
from workshop.launch.report import report

WIDTH, BEFORE, AFTER = 8, 3, 4


class Sequences:
    """Batches in a fixed order; ``position`` is the number of the next one."""

    def __init__(self, rank: int) -> None:
        self.rank, self.position = rank, 0

    def next(self) -> tuple[Tensor, Tensor]:
        """The next batch: inputs and targets."""
        drawn = torch.Generator().manual_seed(1_000 * self.rank + self.position)
        self.position += 1
        inputs = torch.randn(4, WIDTH, generator=drawn)
        return inputs, inputs.flip(1)


class SmallRun:
    """A training with everything that can be forgotten: weights, optimizer, schedule, data, dropout."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.7**step)
        self.data = Sequences(dist.get_rank())

    def step(self) -> float:
        """One step on all ranks; this rank's loss."""
        inputs, targets = self.data.next()
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        loss.backward()
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return loss.item()


def try_on_rank(state_of: Callable[..., Any], go_on: Callable[..., Any]) -> None:
    """Report the losses of the unbroken and of the resumed run, and which parts were taken up."""
    join()
    rank = dist.get_rank()
    run = SmallRun(0)
    torch.manual_seed(10 + rank)  # dropout differs from rank to rank
    for _ in range(BEFORE):
        run.step()
    truth = copy.deepcopy(_parts(run))
    state = state_of(run)
    unbroken = [run.step() for _ in range(AFTER)]
    final = copy.deepcopy(_parts(run))
    torch.manual_seed(99 + rank)
    other = SmallRun(5)
    go_on(other, state)
    restored = copy.deepcopy(_parts(other))
    report(
        check={
            "taken_up": {name: _equal(restored[name], truth[name]) for name in truth},
            "moved": {name: _equal(restored[name], final[name]) for name in truth},
            "unbroken": unbroken,
            "resumed": [other.step() for _ in range(AFTER)],
        }
    )


def _parts(run: SmallRun) -> dict[str, Any]:
    moments = run.optimizer.state_dict()["state"]
    return {
        "weights": dict(run.model.state_dict()),
        "optimizer": {str(number): dict(state) for number, state in moments.items()},
        "schedule": run.schedule.last_epoch,
        "position": run.data.position,
        "random": _random_states(),
    }


def _random_states() -> dict[str, Tensor]:
    """Of the CPU's generator, and of the accelerator's where there is one; nothing here draws from it."""
    states = {"cpu": torch.get_rng_state()}
    if torch.accelerator.is_available():
        states["accelerator"] = torch.get_device_module().get_rng_state()
    return states


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)
