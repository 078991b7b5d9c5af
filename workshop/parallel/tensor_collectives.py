"""Collectives along any dim, out of place: torch's own work along the first one, in contiguous memory."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from workshop.parallel import flat

Group = dist.ProcessGroup | None


def all_reduce(x: Tensor, group: Group, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    """The sum (or another ``op``) of x over the ranks, of x's shape; x itself is left alone."""
    total = x.contiguous().clone()
    dist.all_reduce(total, op, group)
    return total


def all_gather(part: Tensor, dim: int, group: Group) -> Tensor:
    """The ranks' parts one after the other along ``dim``: (..., n, ...) gives (..., ranks * n, ...)."""
    ours = part.movedim(dim, 0).contiguous()
    whole = ours.new_empty((ours.shape[0] * dist.get_world_size(group), *ours.shape[1:]))
    flat.all_gather(whole, ours, group)
    # In order in memory, or every product with it would make, and keep, a copy of its own.
    return whole.movedim(0, dim).contiguous()


def reduce_scatter(x: Tensor, dim: int, group: Group) -> Tensor:
    """The sum of x over the ranks, of which each keeps its part along ``dim``: (..., ranks * n, ...) gives
    (..., n, ...).

    Raises ValueError where ``dim`` does not divide by the ranks.
    """
    ours = x.movedim(dim, 0).contiguous()
    part = torch.empty_like(slice_of(ours, 0, group, "positions"))
    flat.reduce_scatter(part, ours, group=group)
    return part.movedim(0, dim).contiguous()


def slice_of(x: Tensor, dim: int, group: Group, what: str) -> Tensor:
    """This rank's part of x along ``dim``, a view: (..., ranks * n, ...) gives (..., n, ...).

    Raises ValueError, naming ``what``, where it does not divide.
    """
    ranks, size = dist.get_world_size(group), x.shape[dim]
    if size % ranks:
        near = max(size // ranks, 1) * ranks
        raise ValueError(f"{size} {what} do not divide by {ranks} ranks; {near} or {near + ranks} would")
    return x.chunk(ranks, dim)[dist.get_rank(group)]
