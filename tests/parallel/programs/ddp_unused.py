"""Parameters that backward leaves out: told, or sent as zeros; buffers; the order of messages."""

import gc

import torch
import torch.distributed as dist
from torch import nn

from workshop import report
from workshop.parallel.ddp import BucketedDDP, difference_between_ranks, wrap_ddp

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()


class Fork(nn.Module):
    """Goes left or right; `never` is used by nobody."""

    def __init__(self):
        super().__init__()
        self.first, self.left, self.right, self.never = (nn.Linear(4, 4, bias=False) for _ in range(4))

    def forward(self, x, branch):
        return getattr(self, branch)(self.first(x)).square().sum()


def zeros(wrap):
    """Gradients when even ranks go left and odd ones right."""
    torch.manual_seed(rank)
    model = wrap(Fork())
    model(torch.full((1, 4), 1.0 + rank), "left" if rank % 2 == 0 else "right").backward()
    inner = model.module
    return {name: None if p.grad is None else p.grad.clone() for name, p in inner.named_parameters()}


def told():
    """The error of a model with unused parameters."""
    model = BucketedDDP(Fork())
    try:
        model(torch.ones(1, 4), "left").backward()
    except RuntimeError as error:
        return str(error)
    return "nothing"


def after_an_error():
    """The next step works: what the failed one left is forgotten."""
    model = BucketedDDP(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
    try:
        model(torch.full((1, 4), torch.nan)).foo()
    except AttributeError:
        model(torch.ones(1, 4) * rank).sum().backward()
    return model.module[0].bias.grad


def accumulated_only():
    """A branch that was used in a micro-batch without sync, and not in the last one."""
    model = BucketedDDP(Fork(), unused="zeros")
    with model.no_sync():
        model(torch.ones(1, 4), "left").backward()
    model(torch.ones(1, 4), "right").backward()
    alike = nn.ParameterList([p.grad for name, p in model.module.named_parameters() if "never" not in name])
    return max(difference_between_ranks(alike).values()), model.module.never.weight.grad


def batch_norm(wrap):
    """Running means after two steps, and whether ranks agree on them."""
    torch.manual_seed(rank)
    model = wrap(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + rank)
        model(torch.randn(5, 3, generator=generator)).square().sum().backward()
    return model.module[1].running_mean.clone()


def order():
    """What happened, as it was told: by bucket, the messages in one order."""
    told = []
    layers = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(6)))
    model = BucketedDDP(layers, bucket_cap_mb=2 * 64 * 64 * 4 / 2**20, watch=lambda *what: told.append(what))
    model(torch.randn(2, 64)).sum().backward()
    return told


report(
    zeros=zeros(lambda m: BucketedDDP(m, unused="zeros")),
    torch_zeros=zeros(lambda m: wrap_ddp(m, unused="zeros")),
    told=told(),
    after_an_error=after_an_error(),
    accumulated_only=accumulated_only(),
    batch_norm=batch_norm(BucketedDDP),
    torch_batch_norm=batch_norm(wrap_ddp),
    order=order(),
)
gc.collect()
dist.destroy_process_group()
