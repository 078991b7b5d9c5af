# %% other: all_to_all
import torch
import torch.distributed as dist


def gradient_of_shard(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the mean over ranks; `gradient` is of the whole."""
    ranks = dist.get_world_size()
    whole = gradient.contiguous()
    received = torch.empty_like(whole)
    dist.all_to_all_single(received, whole)
    return torch.stack(received.chunk(ranks)).mean(dim=0)


# %% other: reduces
import torch
import torch.distributed as dist


def gradient_of_shard(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the mean over ranks; `gradient` is of the whole."""
    ranks = dist.get_world_size()
    parts = [part.contiguous() for part in gradient.chunk(ranks)]
    for owner, part in enumerate(parts):
        dist.reduce(part, owner)
    return parts[dist.get_rank()] / ranks


# %% wrong: the_sum
# message: That is the sum
import torch
import torch.distributed as dist


def gradient_of_shard(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the mean over ranks; `gradient` is of the whole."""
    ranks = dist.get_world_size()
    mine = gradient.new_empty(len(gradient) // ranks, *gradient.shape[1:])
    dist.reduce_scatter(mine, list(gradient.contiguous().chunk(ranks)))
    return mine


# %% wrong: half_the_sum
# message: half of the sum, but there are 4 ranks
import torch
import torch.distributed as dist


def gradient_of_shard(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the mean over ranks; `gradient` is of the whole."""
    ranks = dist.get_world_size()
    mine = gradient.new_empty(len(gradient) // ranks, *gradient.shape[1:])
    dist.reduce_scatter(mine, list(gradient.contiguous().chunk(ranks)))
    return mine / 2


# %% wrong: all_reduce
# message: 2 times as many as needed
import torch
import torch.distributed as dist


def gradient_of_shard(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the mean over ranks; `gradient` is of the whole."""
    ranks = dist.get_world_size()
    whole = gradient.contiguous()
    dist.all_reduce(whole)
    return whole.chunk(ranks)[dist.get_rank()] / ranks


# %% wrong: only_its_own
# message: what this rank alone computed
import torch
import torch.distributed as dist


def gradient_of_shard(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the mean over ranks; `gradient` is of the whole."""
    ranks = dist.get_world_size()
    return gradient.chunk(ranks)[dist.get_rank()]


# %% wrong: not_contiguous
# message: contiguous
import torch
import torch.distributed as dist


def gradient_of_shard(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the mean over ranks; `gradient` is of the whole."""
    ranks = dist.get_world_size()
    mine = gradient.new_empty(len(gradient) // ranks, *gradient.shape[1:])
    dist.reduce_scatter(mine, list(gradient.chunk(ranks)))
    return mine / ranks


# %% wrong: the_first_rows
# message: Rank 1 has the second part
import torch
import torch.distributed as dist


def gradient_of_shard(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the mean over ranks; `gradient` is of the whole."""
    ranks = dist.get_world_size()
    whole = gradient.contiguous()
    dist.reduce(whole, 0)
    dist.broadcast(whole, 0)
    return whole.chunk(ranks)[0] / ranks
