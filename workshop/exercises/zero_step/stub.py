import torch
import torch.distributed as dist


def zero_step(weights: torch.Tensor, gradient: torch.Tensor, update) -> None:
    """One step of ZeRO 1 on flat tensors, in place; update(part, gradient_of_part) is the optimizer."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(weights.chunk(world_size))  # views: what is written to parts[rank] is written to weights
    mine = torch.empty_like(parts[rank])  # for the mean gradient of this rank's part
    ...
