"""A grid of ranks cut into groups by indexing, with column and row parallel layers by hand: how picotron and
Megatron set up their worlds."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Grid:
    """The groups of this rank, found by looking for it in the grid."""

    def __init__(self, tp, cp, pp, dp):
        rank = dist.get_rank()
        self.grid = torch.arange(dist.get_world_size()).view(dp, pp, cp, tp)
        self.dp_rank, self.pp_rank, self.cp_rank, self.tp_rank = (
            (self.grid == rank).nonzero().flatten().tolist()
        )
        self.tp_group = dist.new_subgroups_by_enumeration(
            [self.grid[d, p, c, :].tolist() for d in range(dp) for p in range(pp) for c in range(cp)]
        )[0]
        self.dp_group = dist.new_subgroups_by_enumeration(
            [self.grid[:, p, c, t].tolist() for p in range(pp) for c in range(cp) for t in range(tp)]
        )[0]
        self.pp_group = dist.new_group(self.grid[self.dp_rank, :, self.cp_rank, self.tp_rank].tolist())
        self.is_last_stage = self.pp_rank == int(self.grid.shape[1]) - 1
        self.tp_size = dist.get_world_size(self.tp_group)


class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient, group=GRID.tp_group)
        return gradient


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x, group=GRID.tp_group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def cut(full, dim):
    """This rank's part of a weight that was drawn whole."""
    return nn.Parameter(
        torch.split(full, full.shape[dim] // GRID.tp_size, dim=dim)[GRID.tp_rank].contiguous()
    )


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = cut(nn.init.normal_(torch.empty(4 * width, width), std=0.02), 0)
        self.down = cut(nn.init.normal_(torch.empty(width, 4 * width), std=0.02), 1)

    def forward(self, x):
        return x + SumOverRanks.apply(F.linear(F.silu(F.linear(CopyToRanks.apply(x), self.up)), self.down))


class VocabEmbedding(nn.Module):
    """Rows of the table this rank has; ids of other ranks give zeros."""

    def __init__(self, vocab, width):
        super().__init__()
        share = vocab // GRID.tp_size
        self.first, self.last = GRID.tp_rank * share, (GRID.tp_rank + 1) * share
        self.weight = cut(torch.randn(vocab, width), 0)

    def forward(self, tokens):
        elsewhere = (tokens < self.first) | (tokens >= self.last)
        local = tokens.clone() - self.first
        local[elsewhere] = 0
        out = F.embedding(local, self.weight)
        out[elsewhere, :] = 0.0
        return SumOverRanks.apply(out)


dist.init_process_group("gloo")
GRID = Grid(tp=2, cp=1, pp=1, dp=dist.get_world_size() // 2)
torch.manual_seed(42)
model = nn.Sequential(VocabEmbedding(512, 96), Mlp(96), Mlp(96), nn.LayerNorm(96), nn.Linear(96, 512))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
counts = torch.zeros(1)
for step in range(4):
    tokens = torch.randint(0, 512, (4, 65))
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    counts += tokens[:, 1:].numel()
    average = loss.detach().clone()
    dist.all_reduce(average, op=dist.ReduceOp.SUM, group=GRID.dp_group)
    if GRID.tp_rank == 0 and GRID.is_last_stage:
        print(f"[rank {dist.get_rank()}] step {step} loss {average.item():.4f} tokens {int(counts.item())}")
dist.destroy_process_group()
