import torch
import torch.distributed as dist


def gradient_of_shard(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the mean over ranks; `gradient` is of the whole."""
    ranks = dist.get_world_size()
    parts = [part.contiguous() for part in gradient.chunk(ranks)]
    for owner, part in enumerate(parts):
        dist.reduce(part, owner)
    return parts[dist.get_rank()] / ranks
