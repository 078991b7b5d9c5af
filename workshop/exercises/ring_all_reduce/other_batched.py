import torch
from torch.distributed import P2POp, batch_isend_irecv, get_rank, get_world_size, irecv, isend


def swap(sent, received):
    rank, world_size = get_rank(), get_world_size()
    for work in batch_isend_irecv(
        [
            P2POp(irecv, received, (rank - 1) % world_size),
            P2POp(isend, sent, (rank + 1) % world_size),
        ]
    ):
        work.wait()


@torch.no_grad()
def ring_all_reduce(tensor):
    rank, world_size = get_rank(), get_world_size()
    chunks = tensor.chunk(world_size)
    received = torch.empty_like(chunks[0])
    for step in range(world_size - 1):
        swap(chunks[(rank - step) % world_size], received)
        chunks[(rank - step - 1) % world_size].add_(received)
    for step in range(world_size - 1):
        swap(chunks[(rank - step + 1) % world_size], chunks[(rank - step) % world_size])
