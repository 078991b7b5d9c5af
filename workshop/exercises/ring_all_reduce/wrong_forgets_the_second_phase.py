import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    """Sum a 1-D tensor over all ranks, in place."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = tensor.chunk(world_size)
    received = torch.empty_like(chunks[0])
    for step in range(world_size - 1):
        sending = dist.isend(chunks[(rank - step) % world_size], right)
        dist.recv(received, left)
        chunks[(rank - step - 1) % world_size].add_(received)
        sending.wait()
