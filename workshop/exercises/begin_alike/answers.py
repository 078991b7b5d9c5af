# %% other: state_dict
import torch
import torch.distributed as dist


@torch.no_grad()
def begin_alike(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)


# %% wrong: forgets_the_buffers
# message: `running_mean` (a buffer)
import torch
import torch.distributed as dist


def begin_alike(model: torch.nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers, in place."""
    for tensor in model.parameters():
        dist.broadcast(tensor.detach(), src=0)


# %% wrong: forgets_frozen_parameters
# message: `frozen` (a parameter that is not trained)
import torch
import torch.distributed as dist


def begin_alike(model: torch.nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers, in place."""
    for tensor in [*(p for p in model.parameters() if p.requires_grad), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)


# %% wrong: the_mean
# message: That is the mean.
import torch
import torch.distributed as dist


def begin_alike(model: torch.nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers, in place."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.all_reduce(tensor.detach())
        tensor.detach().div_(dist.get_world_size())


# %% wrong: zeros
# message: On rank 1 it is now 0; wanted 1.
import torch
import torch.distributed as dist


def begin_alike(model: torch.nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers, in place."""
    for tensor in [*model.parameters(), *model.buffers()]:
        if dist.get_rank() > 0:
            tensor.detach().zero_()
