# %% other: reduce_and_broadcast
import torch.distributed as dist


def zero_step(weights, gradient, update):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    length = len(weights) // world_size
    for owner in range(world_size):  # a reduce to each owner, and a broadcast from it
        part = slice(owner * length, (owner + 1) * length)
        dist.reduce(gradient[part], owner)
    mine = slice(rank * length, (rank + 1) * length)
    update(weights[mine], gradient[mine] / world_size)
    for owner in range(world_size):
        dist.broadcast(weights[owner * length : (owner + 1) * length], owner)


# %% wrong: updates_everything
# message: keeps moments for all values
import torch
import torch.distributed as dist


def zero_step(weights: torch.Tensor, gradient: torch.Tensor, update) -> None:
    dist.all_reduce(gradient)
    update(weights, gradient / dist.get_world_size())


# %% wrong: forgets_the_gather
# message: the parts of the other ranks are missing
import torch
import torch.distributed as dist


def zero_step(weights: torch.Tensor, gradient: torch.Tensor, update) -> None:
    """One step of ZeRO 1 on flat tensors, in place; update(part, gradient_of_part) is the optimizer."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(weights.chunk(world_size))  # views: what is written to parts[rank] is written to weights
    mine = torch.empty_like(parts[rank])  # for the mean gradient of this rank's part
    dist.reduce_scatter(mine, list(gradient.chunk(world_size)))
    mine /= world_size
    update(parts[rank], mine)


# %% wrong: the_sum
# message: the sum of the gradients
import torch
import torch.distributed as dist


def zero_step(weights: torch.Tensor, gradient: torch.Tensor, update) -> None:
    """One step of ZeRO 1 on flat tensors, in place; update(part, gradient_of_part) is the optimizer."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(weights.chunk(world_size))  # views: what is written to parts[rank] is written to weights
    mine = torch.empty_like(parts[rank])  # for the mean gradient of this rank's part
    dist.reduce_scatter(mine, list(gradient.chunk(world_size)))
    update(parts[rank], mine)
    dist.all_gather(parts, parts[rank].clone())


# %% wrong: its_own_gradient
# message: its gradient must be the mean over all ranks
import torch
import torch.distributed as dist


def zero_step(weights: torch.Tensor, gradient: torch.Tensor, update) -> None:
    """One step of ZeRO 1 on flat tensors, in place; update(part, gradient_of_part) is the optimizer."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(weights.chunk(world_size))  # views: what is written to parts[rank] is written to weights
    mine = torch.empty_like(parts[rank])  # for the mean gradient of this rank's part
    mine.copy_(gradient.chunk(world_size)[rank])
    update(parts[rank], mine)
    dist.all_gather(parts, parts[rank].clone())
