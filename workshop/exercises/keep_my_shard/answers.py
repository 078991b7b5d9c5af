# %% other: divided_first
import torch.distributed as dist


def keep_my_shard(weight, kept):
    world_size = dist.get_world_size()
    gradient, weight.grad = weight.grad / world_size, None
    rows = gradient.shape[0] // world_size
    mine = gradient.new_zeros(rows, *gradient.shape[1:])
    dist.reduce_scatter(mine, [part.contiguous() for part in gradient.split(rows)])
    kept[weight] = kept.get(weight, 0) + mine


# %% other: a_reduce_to_each_owner
import torch.distributed as dist


def keep_my_shard(weight, kept):
    for owner, part in enumerate(weight.grad.chunk(dist.get_world_size())):
        part = part.clone()
        dist.reduce(part, owner)
        if owner == dist.get_rank():
            part /= dist.get_world_size()
            if weight in kept:
                kept[weight] += part
            else:
                kept[weight] = part
    weight.grad = None


# %% wrong: the_sum
# message: That is the sum over ranks
import torch
import torch.distributed as dist


def keep_my_shard(weight: torch.Tensor, kept: dict) -> None:
    """The hook of a weight: kept[weight] is this rank's shard of the mean gradient."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(weight.grad.chunk(world_size))
    mine = torch.empty_like(parts[rank])
    dist.reduce_scatter(mine, parts)
    kept[weight] = kept[weight] + mine if weight in kept else mine
    weight.grad = None


# %% wrong: its_own_gradient
# message: this rank's own batch
import torch
import torch.distributed as dist


def keep_my_shard(weight: torch.Tensor, kept: dict) -> None:
    """The hook of a weight: kept[weight] is this rank's shard of the mean gradient."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(weight.grad.chunk(world_size))
    mine = torch.empty_like(parts[rank])
    mine.copy_(parts[rank])
    kept[weight] = kept[weight] + mine if weight in kept else mine
    weight.grad = None


# %% wrong: keeps_the_whole
# message: The whole gradient is still there
import torch
import torch.distributed as dist


def keep_my_shard(weight: torch.Tensor, kept: dict) -> None:
    """The hook of a weight: kept[weight] is this rank's shard of the mean gradient."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(weight.grad.chunk(world_size))
    mine = torch.empty_like(parts[rank])
    dist.reduce_scatter(mine, parts)
    mine /= world_size
    kept[weight] = kept[weight] + mine if weight in kept else mine


# %% wrong: keeps_a_view
# message: is a view of a larger tensor
import torch
import torch.distributed as dist


def keep_my_shard(weight: torch.Tensor, kept: dict) -> None:
    """The hook of a weight: kept[weight] is this rank's shard of the mean gradient."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(weight.grad.chunk(world_size))
    mine = parts[rank]
    dist.reduce_scatter(mine, parts)
    mine /= world_size
    kept[weight] = kept[weight] + mine if weight in kept else mine
    weight.grad = None


# %% wrong: all_reduces
# message: sends 1.5 times the bytes
import torch
import torch.distributed as dist


def keep_my_shard(weight: torch.Tensor, kept: dict) -> None:
    """The hook of a weight: kept[weight] is this rank's shard of the mean gradient."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(weight.grad.chunk(world_size))
    dist.all_reduce(weight.grad)
    mine = parts[rank].clone()
    mine /= world_size
    kept[weight] = kept[weight] + mine if weight in kept else mine
    weight.grad = None


# %% wrong: the_last_micro_batch
# message: of the last micro-batch alone
import torch
import torch.distributed as dist


def keep_my_shard(weight: torch.Tensor, kept: dict) -> None:
    """The hook of a weight: kept[weight] is this rank's shard of the mean gradient."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(weight.grad.chunk(world_size))
    mine = torch.empty_like(parts[rank])
    dist.reduce_scatter(mine, parts)
    mine /= world_size
    kept[weight] = mine
    weight.grad = None


# %% wrong: keeps_the_mean_of_all_rows
# message: wanted shape
import torch
import torch.distributed as dist


def keep_my_shard(weight: torch.Tensor, kept: dict) -> None:
    """The hook of a weight: kept[weight] is this rank's shard of the mean gradient."""
    world_size = dist.get_world_size()
    mine = weight.grad.clone()
    dist.all_reduce(mine)
    mine /= world_size
    kept[weight] = kept[weight] + mine if weight in kept else mine
    weight.grad = None


# %% wrong: returns_it
# message: `kept` has nothing under the weight
import torch
import torch.distributed as dist


def keep_my_shard(weight: torch.Tensor, kept: dict) -> None:
    """The hook of a weight: kept[weight] is this rank's shard of the mean gradient."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(weight.grad.chunk(world_size))
    mine = torch.empty_like(parts[rank])
    dist.reduce_scatter(mine, parts)
    mine /= world_size
    weight.grad = None
    return mine


# %% wrong: gathers_all
# message: sends 3 times the bytes
import torch
import torch.distributed as dist


def keep_my_shard(weight: torch.Tensor, kept: dict) -> None:
    """The hook of a weight: kept[weight] is this rank's shard of the mean gradient."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    whole = [torch.empty_like(weight.grad) for _ in range(world_size)]
    dist.all_gather(whole, weight.grad)
    mine = sum(one.chunk(world_size)[rank] for one in whole) / world_size
    kept[weight] = kept[weight] + mine if weight in kept else mine
    weight.grad = None
