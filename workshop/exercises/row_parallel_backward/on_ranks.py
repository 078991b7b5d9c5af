"""Call the learner's two backwards on every rank: on whole numbers one can read, then on random ones.

Every rank builds the same whole block and lets autograd find its gradients: the twin. What belongs to a
rank is a slice of them, and of x the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from workshop.exercises.engine.group import join, line_of_wait
from workshop.launch.report import report

Backward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def try_on_rank(rows: Backward, columns: Backward) -> None:
    """Report both cases, gradient by gradient: what was found and what is wanted."""
    join()
    ranks = dist.get_world_size()
    readable = (
        torch.tensor([[1.0, 2.0]]),
        torch.arange(1.0, 2 * ranks + 1).reshape(2, ranks),
        torch.arange(1.0, ranks + 1).reshape(ranks, 1),
    )
    generator = torch.Generator().manual_seed(0)
    random = tuple(
        torch.randn(shape, generator=generator) for shape in ((5, 4), (4, 3 * ranks), (3 * ranks, 4))
    )
    reported: dict[str, Any] = {}

    def both() -> None:
        for name, (x, a, b) in (("readable", readable), ("random", random)):
            reported[name] = _case(rows, columns, x, a, b)

    reported["waited_at"] = line_of_wait(both)
    report(check=reported)


def _case(rows: Backward, columns: Backward, x: Tensor, a: Tensor, b: Tensor) -> dict[str, Any]:
    """One block: the whole one by autograd, this rank's part by the learner."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, a, b = (tensor.clone().requires_grad_() for tensor in (x, a, b))
    z = x @ a
    h = z.relu()
    y = h @ b
    for tensor in (z, h):
        tensor.retain_grad()
    gradient_y = torch.arange(1.0, y.numel() + 1).reshape(y.shape)
    y.backward(gradient_y)
    mine = {
        name: t.detach().chunk(ranks, dim)[rank].clone()
        for name, t, dim in (("a", a, 1), ("b", b, 0), ("h", h, 1))
    }
    gradient_z = _grad(z).chunk(ranks, 1)[rank].clone()  # the right one: each backward is judged by itself
    found_h, found_b = rows(gradient_y.clone(), mine["h"], mine["b"])
    found_x, found_a = columns(gradient_z.clone(), x.detach().clone(), mine["a"])
    return {
        "h": _pair(found_h, _grad(h).chunk(ranks, 1)[rank]),
        "b": _pair(found_b, _grad(b).chunk(ranks, 0)[rank]),
        "x": _pair(found_x, _grad(x)) | {"alone": (gradient_z @ mine["a"].T).flatten().tolist()},
        "a": _pair(found_a, _grad(a).chunk(ranks, 1)[rank]),
    }


def _grad(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def _pair(answer: Any, wanted: Tensor) -> dict[str, Any]:
    is_tensor = isinstance(answer, Tensor)
    return {
        "found": answer.detach().flatten().tolist() if is_tensor else None,
        "shape": list(answer.shape) if is_tensor else None,
        "wanted": wanted.flatten().tolist(),
        "wanted_shape": list(wanted.shape),
    }
