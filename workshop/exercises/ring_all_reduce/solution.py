import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    """Sum a 1-D tensor over all ranks, in place."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = tensor.chunk(world_size)
    received = torch.empty_like(chunks[0])

    def pass_on(outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
        to_right, from_left = dist.P2POp(dist.isend, outgoing, right), dist.P2POp(dist.irecv, incoming, left)
        for request in dist.batch_isend_irecv(
            [to_right, from_left]
        ):  # together: NCCL does one after the other
            request.wait()

    for step in range(world_size - 1):
        pass_on(chunks[(rank - step) % world_size], received)
        chunks[(rank - step - 1) % world_size].add_(received)
    for step in range(world_size - 1):
        pass_on(chunks[(rank - step + 1) % world_size], chunks[(rank - step) % world_size])
