# %% other: reduce
from collections.abc import Callable

import torch
import torch.distributed as dist


def tell_mean(loss: torch.Tensor, say: Callable[[torch.Tensor], None]) -> None:
    mean = loss.detach() / dist.get_world_size()
    dist.reduce(mean, dst=0)
    if dist.get_rank() != 0:
        return
    say(mean)


# %% wrong: a_guarded_collective
# message: the others never reach
import torch
import torch.distributed as dist


def tell_mean(loss: torch.Tensor, say) -> None:
    """Rank 0 calls `say` with the mean loss of all ranks; `loss` stays as it is."""
    total = loss.detach().clone()
    if dist.get_rank() == 0:
        dist.all_reduce(total)
        say(total / dist.get_world_size())


# %% wrong: everybody_speaks
# message: The guard belongs around the call of `say`
import torch
import torch.distributed as dist


def tell_mean(loss: torch.Tensor, say) -> None:
    """Rank 0 calls `say` with the mean loss of all ranks; `loss` stays as it is."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    say(total / dist.get_world_size())


# %% wrong: the_sum
# message: That is the sum
import torch
import torch.distributed as dist


def tell_mean(loss: torch.Tensor, say) -> None:
    """Rank 0 calls `say` with the mean loss of all ranks; `loss` stays as it is."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        say(total)


# %% wrong: its_own_loss
# message: the mean over all ranks
import torch
import torch.distributed as dist


def tell_mean(loss: torch.Tensor, say) -> None:
    """Rank 0 calls `say` with the mean loss of all ranks; `loss` stays as it is."""
    total = loss.detach().clone()
    if dist.get_rank() == 0:
        say(total)


# %% wrong: in_place
# message: Give it a copy
import torch
import torch.distributed as dist


def tell_mean(loss: torch.Tensor, say) -> None:
    """Rank 0 calls `say` with the mean loss of all ranks; `loss` stays as it is."""
    total = loss
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        say(total / dist.get_world_size())
