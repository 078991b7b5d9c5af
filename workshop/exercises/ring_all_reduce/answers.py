# %% other: batched
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


# %% wrong: gathers_everything_and_sums
# message: rank 0 sent 48 bytes for a tensor of 16 bytes; wanted 24
import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    everything = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, tensor)
    tensor.copy_(torch.stack(everything).sum(dim=0))


# %% wrong: sends_the_whole_tensor_round
# message: rank 0 sent 48 bytes for a tensor of 16 bytes
import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    passing, received = tensor.clone(), torch.empty_like(tensor)
    for _ in range(world_size - 1):
        sending = dist.isend(passing, (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
        sending.wait()
        tensor += received
        passing, received = received, passing


# %% wrong: forgets_the_second_phase
# message: the all-gather has not handed the sums out
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


# %% wrong: wrong_chunk_in_the_second_phase
# message: Which chunk do you send in which step?
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
    for step in range(world_size - 1):
        sending = dist.isend(chunks[(rank - step) % world_size], right)
        dist.recv(chunks[(rank - step - 1) % world_size], left)
        sending.wait()


# %% wrong: receives_first_everywhere
# message: after 10 seconds rank 0 still waits on line 13
import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    """Sum a 1-D tensor over all ranks, in place."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = tensor.chunk(world_size)
    received = torch.empty_like(chunks[0])
    for step in range(world_size - 1):
        dist.recv(received, left)
        sending = dist.isend(chunks[(rank - step) % world_size], right)
        chunks[(rank - step - 1) % world_size].add_(received)
        sending.wait()


# %% wrong: calls_the_library
# message: `dist.all_reduce` made them
import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)
