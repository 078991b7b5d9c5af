# %% other: one_bucket
import torch
import torch.distributed as dist


def average_gradients(model):
    used = [p for p in model.parameters() if p.grad is not None]
    together = torch.cat([p.grad.flatten() for p in used])  # one bucket
    dist.all_reduce(together)
    together /= dist.get_world_size()
    for p, part in zip(used, together.split([p.numel() for p in used]), strict=True):
        p.grad.copy_(part.view_as(p))


# %% wrong: the_sum
# message: it is now 4; wanted 2. That is the sum
import torch
import torch.distributed as dist


def average_gradients(model: torch.nn.Module) -> None:
    """Make the gradient of every parameter the mean over all ranks, in place."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


# %% wrong: broadcast_from_rank_0
# message: drops the others
import torch
import torch.distributed as dist


def average_gradients(model: torch.nn.Module) -> None:
    """Make the gradient of every parameter the mean over all ranks, in place."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.broadcast(parameter.grad, 0)


# %% wrong: forgets_the_biases
# message: It has not changed (`weight` is right)
import torch
import torch.distributed as dist


def average_gradients(model: torch.nn.Module) -> None:
    """Make the gradient of every parameter the mean over all ranks, in place."""
    for parameter in model.parameters():
        if parameter.grad is not None and parameter.dim() > 1:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


# %% wrong: trips_over_none
# message: line 9
import torch
import torch.distributed as dist


def average_gradients(model: torch.nn.Module) -> None:
    """Make the gradient of every parameter the mean over all ranks, in place."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
