"""Stage 3 on a stack that is born on the meta device, under whatever cap the launch has."""

import gc

import torch
import torch.distributed as dist
from torch import nn

from workshop.parallel.zero import zero

dist.init_process_group("gloo")


def train(width=512, depth=8):
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])
    optimizer = zero(model, 3, fused=True)
    for _ in range(2):
        model(torch.ones(1, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


train()
gc.collect()
dist.destroy_process_group()
