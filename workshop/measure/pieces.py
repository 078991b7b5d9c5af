"""Seconds of a model's pieces, each alone: what a planner that cannot model kernels asks for.

A model that is a list of pieces is run piece by piece: forward, then backward through this piece only, from a
gradient of ones. The shortest of some runs counts, since whatever else runs can only make it slower. Let all
ranks of a machine do this at the same time: then each has its share of the machine's memory bandwidth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def seconds_of_pieces(
    pieces: Sequence[Callable[[Tensor], Tensor]], x: Tensor, repeats: int = 5
) -> list[tuple[float, float]]:
    """(forward, backward) of each piece, the least of ``repeats`` runs after one that warms up.

    pieces: called one after the other, each with what the one before gave. x: what the first gets. Gradients
    are left on the pieces' parameters. Raises ValueError for fewer than one repeat.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; measure at least once")
    least = [(float("inf"), float("inf"))] * len(pieces)
    for attempt in range(repeats + 1):
        given, seconds = x, []
        for number, piece in enumerate(pieces):
            given = given.detach().requires_grad_(number > 0)
            begin = _now(x.device)
            result = piece(given)
            middle = _now(x.device)
            result.backward(torch.ones_like(result))
            seconds.append((middle - begin, _now(x.device) - middle))
            given = result
        if attempt:
            least = [(min(a, c), min(b, d)) for (a, b), (c, d) in zip(least, seconds, strict=True)]
    return least


def seconds_of_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, repeats: int = 3) -> float:
    """One step for every parameter of a model that has gradients, the least of some, per parameter."""
    optimizer.step()
    device, times = next(model.parameters()).device, []
    for _ in range(repeats):
        begin = _now(device)
        optimizer.step()
        times.append(_now(device) - begin)
    return min(times) / sum(parameter.numel() for parameter in model.parameters())


def _now(device: torch.device) -> float:
    """Seconds; on a GPU once it has done what was asked."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
