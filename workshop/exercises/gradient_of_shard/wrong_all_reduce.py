import torch
import torch.distributed as dist


def gradient_of_shard(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the mean over ranks; `gradient` is of the whole."""
    ranks = dist.get_world_size()
    whole = gradient.contiguous()
    dist.all_reduce(whole)
    return whole.chunk(ranks)[dist.get_rank()] / ranks
