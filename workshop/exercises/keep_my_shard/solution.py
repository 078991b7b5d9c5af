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
    weight.grad = None
