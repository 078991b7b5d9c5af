"""Call the learner's function on four ranks, for two numberings of the box.

Every rank knows both whole matrices and the whole batch, and so what one process gives, and what the usual
slips would give on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from workshop.exercises.engine.check import HANG_SECONDS
from workshop.exercises.engine.group import join, line_of_wait
from workshop.launch.report import report

AXES = ("tensor", "data")
Gradients = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Box:
    """Two by two ranks, numbered along the axis ``inner`` first, and what each of them holds."""

    inner: str
    x: Tensor
    up: Tensor
    down: Tensor

    def place(self, rank: int, axis: str) -> int:
        """0 or 1."""
        return rank % 2 if axis == self.inner else rank // 2

    def members(self, rank: int, axis: str) -> list[int]:
        """The ranks that take part: of the group on an axis, ``"all"`` or ``"alone"``."""
        if axis not in AXES:
            return [rank] if axis == "alone" else list(range(4))
        (other,) = {*AXES} - {axis}
        return [one for one in range(4) if self.place(one, other) == self.place(rank, other)]

    def batch(self, rank: int) -> Tensor:
        """The rank's rows of the batch."""
        return self.x.chunk(2)[self.place(rank, "data")]

    def shard(self, rank: int, matrix: int) -> Tensor:
        """The rank's rows of its half of ``up`` (0) or ``down`` (1)."""
        return self.rows(rank, self.halves(self.up, self.down, rank)[matrix])

    def halves(self, of_up: Tensor, of_down: Tensor, rank: int) -> Gradients:
        """What the cut along tensor gives a rank of tensors with the shapes of the two matrices."""
        place = self.place(rank, "tensor")
        return of_up.chunk(2, 0)[place], of_down.chunk(2, 1)[place]

    def rows(self, rank: int, matrix: Tensor, axis: str = "data") -> Tensor:
        """The rank's rows of its half of a matrix."""
        return matrix.chunk(2)[self.place(rank, axis)].contiguous()


@dataclass(frozen=True)
class Way:
    """Who takes part in each collective, what the sum of gradients is divided by, which rows are kept."""

    gather: str = "data"
    add: str = "tensor"
    average: str = "data"
    divide: int = 2
    keep: str = "data"

    def gradients(self, box: Box) -> list[Gradients]:
        """Of each rank."""
        alone = []
        for rank in range(4):
            up_half, down_half = self._gathered(box, rank)
            y = torch.stack([self._partial(box, one) for one in box.members(rank, self.add)]).sum(0).relu()
            h = (box.batch(rank) @ up_half.T).relu()
            gradient_y = 2 * y / y.numel()
            alone.append((((gradient_y @ down_half) * (h > 0)).T @ box.batch(rank), gradient_y.T @ h))
        return [self._kept(box, rank, alone) for rank in range(4)]

    def _gathered(self, box: Box, rank: int) -> Gradients:
        members = box.members(rank, self.gather)
        up, down = (torch.cat([box.shard(one, matrix) for one in members]) for matrix in (0, 1))
        return up, down

    def _partial(self, box: Box, rank: int) -> Tensor:
        up_half, down_half = self._gathered(box, rank)
        return (box.batch(rank) @ up_half.T).relu() @ down_half.T

    def _kept(self, box: Box, rank: int, alone: Sequence[Gradients]) -> Gradients:
        members = box.members(rank, self.average)
        up, down = (torch.stack([alone[one][matrix] for one in members]).sum(0) for matrix in (0, 1))
        return box.rows(rank, up, self.keep) / self.divide, box.rows(rank, down, self.keep) / self.divide


SLIPS = {
    "parts_not_added": Way(add="alone"),
    "added_over_data": Way(add="data"),
    "added_over_all": Way(add="all"),
    "averaged_over_tensor": Way(average="tensor"),
    "averaged_over_all": Way(average="all", divide=4),
    "halved_over_all": Way(average="all"),
    "own_rows": Way(average="alone", divide=1),
    "summed": Way(divide=1),
    "gathered_over_tensor": Way(gather="tensor"),
    "other_rows": Way(keep="tensor"),
}


def try_on_rank(two_cut_gradients: Callable[..., Any]) -> None:
    """Report what was found for both boxes, what is wanted, and what slips would give."""
    join()
    generator = torch.Generator().manual_seed(0)
    x, up, down = (torch.randn(shape, generator=generator) for shape in ((6, 5), (8, 5), (4, 8)))
    reported: dict[str, Any] = {}
    boxes = [Box(inner, x, up, down) for inner in AXES]
    groups = [
        _groups(box) for box in boxes
    ]  # before the learner's code: a rank that hangs would not come here

    def both() -> None:
        for box, mine in zip(boxes, groups, strict=True):
            reported[box.inner] = _case(two_cut_gradients, box, mine)

    reported["waited_at"] = line_of_wait(both)
    report(check=reported)


def _case(two_cut_gradients: Callable[..., Any], box: Box, groups: dict[str, Any]) -> dict[str, Any]:
    rank = dist.get_rank()
    shards = box.shard(rank, 0), box.shard(rank, 1)
    answer = two_cut_gradients(box.batch(rank).clone(), *(shard.clone() for shard in shards), groups)
    wanted = tuple(box.rows(rank, half) for half in box.halves(*_of_one_process(box), rank))
    return {
        "answer": _plain(answer, wanted),
        "wanted": [gradient.tolist() for gradient in wanted],
        "slips": {
            name: [gradient.tolist() for gradient in way.gradients(box)[rank]] for name, way in SLIPS.items()
        },
    }


def _groups(box: Box) -> dict[str, Any]:
    """This rank's process groups; every rank takes part in making all of them."""
    mine = {}
    for axis in AXES:
        for members in sorted({tuple(box.members(rank, axis)) for rank in range(4)}):
            group = dist.new_group(list(members), timeout=timedelta(seconds=HANG_SECONDS))
            if dist.get_rank() in members:
                mine[axis] = group
    return mine


def _of_one_process(box: Box) -> Gradients:
    up, down = box.up.clone().requires_grad_(), box.down.clone().requires_grad_()
    ((box.x @ up.T).relu() @ down.T).relu().square().mean().backward()
    assert up.grad is not None
    assert down.grad is not None
    return up.grad, down.grad


def _plain(answer: Any, wanted: Sequence[Tensor]) -> list[Any] | None:
    """Two gradients as lists; None for anything else."""
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        return None
    right = [
        isinstance(one, Tensor) and one.shape == other.shape
        for one, other in zip(answer, wanted, strict=True)
    ]
    return [one.detach().tolist() for one in answer] if all(right) else None
