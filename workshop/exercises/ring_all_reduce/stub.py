import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    """Sum a 1-D tensor over all ranks, in place."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = tensor.chunk(world_size)  # views: to write to one is to write there
    # Reduce-scatter, world_size - 1 times: pass one to the right, add what arrives.
    ...
    # All-gather: pass on the chunk that is complete, world_size - 1 times.
    ...
