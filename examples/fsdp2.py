"""FSDP2: every rank keeps one shard of each weight, and borrows the rest for the moment it is needed.

    python -m torch.distributed.run --standalone --nproc-per-node 2 fsdp2.py

`fully_shard` on a block means: all_gather its weights before its forward and its backward, free them after,
reduce_scatter its gradients. The optimizer then works on shards alone.
"""

import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

WIDTH, DEPTH, STEPS = 64, 4, 4


def set_up() -> torch.device:
    """Join the group; one GPU for each rank where there are enough, else the CPU."""
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.accelerator.is_available() and torch.accelerator.device_count() >= local_ranks:
        torch.accelerator.set_device_index(local_rank)
        device = torch.device(torch.accelerator.current_accelerator().type, local_rank)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    return device


class Block(nn.Module):
    """A residual MLP block, the larger half of a transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def train(device: torch.device) -> None:
    """Shard the model, look at the shards, take a few steps."""
    rank = dist.get_rank()
    torch.manual_seed(0)  # unlike DDP, fully_shard sends no weights around: all ranks must begin alike
    model = nn.Sequential(*[Block() for _ in range(DEPTH)]).to(device)
    whole = sum(p.numel() for p in model.parameters())

    # A unit for each block: while block 2 computes, block 3's weights are already on their way.
    for block in model:
        fully_shard(block)
    fully_shard(model)

    parameters = list(model.parameters())
    assert all(isinstance(p, DTensor) for p in parameters)  # one tensor to the program, shards underneath
    mine = sum(p.to_local().numel() for p in parameters)
    print(f"rank {rank} holds {mine} of {whole} parameters")

    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    generator = torch.Generator().manual_seed(100 + rank)
    for step in range(STEPS):
        x = torch.randn(8, WIDTH, generator=generator).to(device)
        loss = (model(x) - x.roll(1, dims=-1)).square().mean()
        loss.backward()
        # The gradient is a shard as well; its norm is that of the whole, computed across the ranks.
        norm = nn.utils.clip_grad_norm_(parameters, max_norm=1.0).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        print(f"step {step} loss {total.item() / dist.get_world_size():.4f} gradient norm {norm.item():.4f}")

    # A shard becomes the whole again with one all_gather.
    weight = model[0].up.weight
    print(f"up.weight: {tuple(weight.to_local().shape)} here, {tuple(weight.full_tensor().shape)} in all")


def main() -> None:
    train(set_up())
    gc.collect()  # FSDP2 ties modules and hooks in circles, and these hold the group
    dist.destroy_process_group()  # last: nothing that holds the group is left


if __name__ == "__main__":
    main()
