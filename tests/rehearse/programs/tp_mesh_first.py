"""Tensor and sequence parallel where `init_device_mesh` is what joins the world, as in PyTorch's examples."""

import os

import torch
from torch import nn
from torch.distributed import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj = nn.Linear(64, 256)
        self.relu = nn.ReLU()
        self.out_proj = nn.Linear(256, 32)

    def forward(self, x):
        return self.out_proj(self.relu(self.in_proj(x)))


mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
assert mesh.get_rank() == int(os.environ["RANK"])
plan = {
    "in_proj": ColwiseParallel(input_layouts=Shard(0)),
    "out_proj": RowwiseParallel(output_layouts=Shard(0)),
}
model = parallelize_module(ToyModel().to("cpu"), mesh, plan)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, foreach=True)
for step in range(4):
    torch.manual_seed(step + mesh.get_rank())
    output = model(torch.rand(128, 64))
    output.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if mesh.get_rank() == 0:
        print(f"iteration {step} completed, {output.shape[0]} rows")
