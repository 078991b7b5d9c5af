import torch
import torch.distributed as dist


def zero_step(weights: torch.Tensor, gradient: torch.Tensor, update) -> None:
    """ZeRO 1 on flat tensors, in place; update(part, its_gradient) is the optimizer."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(weights.chunk(world_size))  # views: a change of one changes weights
    mine = torch.empty_like(parts[rank])  # for the mean gradient of this rank's part
    ...
