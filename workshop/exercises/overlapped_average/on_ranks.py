"""Call the learner's `overlapped_average`: are the gradients means, and when were the messages started?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from workshop.exercises.average_gradients.on_ranks import BATCH, WIDTH, TwoLayers
from workshop.exercises.engine.group import join, line_of_wait
from workshop.launch.report import report

STEPS = 3


@contextmanager
def all_reduces() -> Iterator[list[bool]]:
    """Inside: a list with one entry for each all_reduce, True where the caller waits for it at once."""
    awaited: list[bool] = []
    original = vars(ProcessGroup)["allreduce"]

    def allreduce(self: ProcessGroup, tensors: Any, opts: Any = None, *rest: Any) -> Any:
        awaited.append(not getattr(opts, "asyncOp", False))
        given = (tensors, *rest) if opts is None else (tensors, opts, *rest)
        return original.__get__(self)(*given)

    setattr(ProcessGroup, "allreduce", allreduce)  # noqa: B010 - a method
    try:
        yield awaited
    finally:
        setattr(ProcessGroup, "allreduce", original)  # noqa: B010 - a method


def try_on_rank(overlapped_average: Callable[[nn.Module], Callable[[], Any]]) -> None:
    """Three steps; report gradients as multiples of the single process's, and when all_reduces began."""
    join()
    model, twin = _model(), _model()
    reported: dict[str, Any] = {"ratios": [], "in_backward": 0, "awaited": 0}
    reported["wanted"] = sum(not name.startswith("unused") for name, _ in model.named_parameters())

    def steps() -> None:
        finish = overlapped_average(model)
        for step in range(STEPS):
            model.zero_grad()
            with all_reduces() as awaited:
                _backward(model, step, [dist.get_rank()])
                reported["in_backward"], reported["awaited"] = len(awaited), sum(awaited)
                finish()
            twin.zero_grad()
            _backward(twin, step, range(dist.get_world_size()))
            reported["ratios"].append(_ratio(model, twin))

    reported["waited_at"] = line_of_wait(steps)
    report(check=reported)


def _model() -> TwoLayers:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TwoLayers()


def _backward(model: nn.Module, step: int, places: Any) -> None:
    """The mean loss over the batches of these ranks."""
    batches = []
    for place in places:
        generator = torch.Generator().manual_seed(100 * step + place)
        batches.append(torch.randn(BATCH, WIDTH, generator=generator))
    x = torch.cat(batches)
    nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True)).backward()


def _ratio(model: nn.Module, twin: nn.Module) -> float:
    """How many times the twin's gradients ours are: the multiple that is furthest from 1."""
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    ratios = [float((a.grad * b.grad).sum() / b.grad.square().sum()) for a, b in pairs if b.grad is not None]  # type: ignore[operator]
    return max(ratios, key=lambda ratio: abs(ratio - 1))
