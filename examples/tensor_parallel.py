"""Tensor parallelism: one layer's weights split over ranks, with one all_reduce for each block.

    python -m torch.distributed.run --standalone --nproc-per-node 2 tensor_parallel.py

The first matrix is split by columns: each rank computes some of the hidden units, and needs nobody for it.
The second is split by rows: each rank has the weights for its own hidden units, and the partial results add
up to the answer (Megatron-LM, https://arxiv.org/abs/1909.08053, section 3).
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, HIDDEN = 32, 128


def set_up() -> torch.device:
    """Join the group; one GPU for each rank where there are enough, else the CPU."""
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.accelerator.is_available() and torch.accelerator.device_count() >= local_ranks:
        torch.accelerator.set_device_index(local_rank)
        device = torch.device(torch.accelerator.current_accelerator().type, local_rank)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    return device


class FeedForward(nn.Module):
    """Two matrices with something non-linear between them. It knows nothing of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


def main() -> None:
    device = set_up()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(device.type, (world_size,), mesh_dim_names=("tensor",))

    torch.manual_seed(0)
    whole = FeedForward().to(device)
    split = FeedForward().to(device)
    split.load_state_dict(whole.state_dict())
    parallelize_module(split, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for name, parameter in split.named_parameters():
        print(f"rank {rank} {name}: {tuple(parameter.to_local().shape)} of {tuple(parameter.shape)}")

    # All ranks of a tensor-parallel group see the same input: they share one copy of the model.
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1)).to(device)
    expected, answer = whole(x), split(x)
    torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-5)
    print("forward: the split layer gives what the whole one gives")

    expected.square().mean().backward()
    answer.square().mean().backward()
    for name, parameter in split.named_parameters():
        gradient = whole.get_parameter(name).grad
        torch.testing.assert_close(parameter.grad.full_tensor(), gradient, rtol=1e-4, atol=1e-5)
    print("backward: and the same gradients")

    # Three steps of training, each rank on its own pieces.
    optimizer = torch.optim.SGD(split.parameters(), lr=0.5)
    for step in range(3):
        loss = (split(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
