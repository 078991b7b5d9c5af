import torch
import torch.distributed as dist


def gradient_of_shard(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the mean over ranks; `gradient` is of the whole."""
    ranks = dist.get_world_size()
    mine = gradient.new_empty(len(gradient) // ranks, *gradient.shape[1:])
    dist.reduce_scatter(mine, list(gradient.contiguous().chunk(ranks)))
    return mine / 2
