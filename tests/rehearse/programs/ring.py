"""Ring attention by hand: keys and values travel around while queries stay; then Ulysses: heads for
sequence."""

import torch
import torch.distributed as dist
from torch import nn


class Pass(torch.autograd.Function):
    """Send to the next rank, receive from the one before; gradients go the other way."""

    @staticmethod
    def forward(ctx, x, step=1):
        ctx.step = step
        return shift(x, step)

    @staticmethod
    def backward(ctx, gradient):
        return shift(gradient, -ctx.step), None


def shift(x, step):
    rank, world = dist.get_rank(), dist.get_world_size()
    out = torch.empty(x.shape)
    operations = [
        dist.P2POp(dist.isend, x.contiguous(), (rank + step) % world),
        dist.P2POp(dist.irecv, out, (rank - step) % world),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return out


class Ring(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, 3 * width)

    def forward(self, x):
        query, key, value = self.inner(x).chunk(3, -1)
        scores, values = [], []
        for _ in range(dist.get_world_size()):
            scores.append(query @ key.transpose(1, 2))
            values.append(value)
            key, value = Pass.apply(key), Pass.apply(value)
        return torch.cat(scores, -1).softmax(-1) @ torch.cat(values, 1)


class Ulysses(nn.Module):
    """Every rank has a part of the sequence and all heads; inside, all of the sequence and a part of the
    heads."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.inner = nn.Linear(width, 3 * width)

    def forward(self, x):
        from torch.distributed._functional_collectives import all_to_all_single_autograd as all_to_all

        world = dist.get_world_size()
        batch, length, width = x.shape
        qkv = self.inner(x).view(batch, length, 3, world, self.heads // world, -1)
        traded = all_to_all(qkv.permute(3, 0, 2, 4, 1, 5).contiguous(), None, None, dist.group.WORLD)
        query, key, value = traded.permute(2, 1, 3, 0, 4, 5).flatten(3, 4)
        mixed = (query @ key.transpose(-1, -2)).softmax(-1) @ value
        back = mixed.view(batch, self.heads // world, world, length, -1).permute(2, 0, 1, 3, 4).contiguous()
        home = all_to_all(back, None, None, dist.group.WORLD)
        return home.permute(1, 3, 0, 2, 4).reshape(batch, length, width)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(Ring(64), Ulysses(64, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(8):
        model(torch.randn(2, 128, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
