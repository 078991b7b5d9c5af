"""Batch norm over all ranks' batches: the one layer in which a data-parallel rank needs to know the others.

`nn.BatchNorm2d` subtracts the mean of a batch and divides by its deviation. Under data parallelism each rank
has a part of the batch, and so another mean: N ranks compute what one process does that takes its batch in N
parts. Often that is good enough, and it is what everybody gets who does nothing. It is not the whole batch's
result; with one or two images a rank it is much noisier.

Shared statistics give the whole batch's result, at the price of two small all-reduces a layer (Ioffe and
Szegedy 2015, arXiv 1502.03167, algorithm 1, with sums over all ranks; N images in all, of n pixels each)::

    forward    all_reduce [sum of x, sum of x^2]      mean, variance; x' = (x - mean) / deviation
    backward   all_reduce [sum of g, sum of g x']     dx = (g - sum g / N - x' sum g x' / N) / deviation

`torch.nn.SyncBatchNorm` is that for GPUs, and runs on nothing else; `SharedBatchNorm` is that for any
backend. `share_batch_norm` chooses. Gradients of the layer's own weight and bias are sums over this rank's
images, as of any weight: data parallelism averages them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class _Normalise(torch.autograd.Function):
    """x' from x, with mean and variance over all ranks. x: (batch, channels, ...)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, group: dist.ProcessGroup | None) -> Any:
        """Returns x', and per channel the mean and the (biased) variance, and the count as a tensor."""
        over = [dim for dim in range(x.ndim) if dim != 1]
        count = x.new_full((1,), x.numel() / x.shape[1])
        sums = torch.cat([x.sum(over), x.square().sum(over), count])
        dist.all_reduce(sums, group=group)
        total = sums[-1]
        mean, square = (sums[:-1] / total).chunk(2)
        variance = (square - mean.square()).clamp_min(0.0)
        shape = [1, -1] + [1] * (x.ndim - 2)
        scale = torch.rsqrt(variance + eps).view(shape)
        normal = (x - mean.view(shape)) * scale
        ctx.save_for_backward(normal, scale, total)
        ctx.over, ctx.shape, ctx.group = over, shape, group
        ctx.mark_non_differentiable(mean, variance, total)
        return normal, mean, variance, total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        """What the whole batch's mean and deviation took from every image, summed over all ranks."""
        normal, scale, total = ctx.saved_tensors
        sums = torch.cat([gradient.sum(ctx.over), (gradient * normal).sum(ctx.over)])
        dist.all_reduce(sums, group=ctx.group)
        plain, along = (part.view(ctx.shape) for part in (sums / total).chunk(2))
        return (gradient - plain - normal * along) * scale, None, None


class SharedBatchNorm(nn.BatchNorm2d):
    """`nn.BatchNorm2d` whose statistics in training are those of all ranks' batches together.

    Made from a BatchNorm2d by `share_batch_norm`; same parameters, buffers and names. In evaluation, and
    without a process group, it is a BatchNorm2d.
    """

    group: dist.ProcessGroup | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, side, side) to the same."""
        if not self.training or not dist.is_initialized() or self.running_mean is None:
            return super().forward(x)
        normal, mean, variance, total = _Normalise.apply(x, self.eps, self.group)
        with torch.no_grad():
            assert self.num_batches_tracked is not None
            assert self.running_var is not None
            self.num_batches_tracked.add_(1)
            share = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
            self.running_mean.lerp_(mean, share)
            self.running_var.lerp_(variance * total / (total - 1), share)
        return normal * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


def share_batch_norm(model: nn.Module, group: dist.ProcessGroup | None = None) -> nn.Module:
    """Make every BatchNorm2d of a model share its statistics over a group's ranks, in place.

    Before sharding and DDP. On GPUs torch's SyncBatchNorm, else `SharedBatchNorm`; the first is untested
    here.

    Raises ValueError for a model without batch norm: it needs none of this.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    if not norms:
        raise ValueError(f"{type(model).__name__} has no BatchNorm2d: its ranks need not share statistics")
    if next(model.parameters()).is_cuda:
        return nn.SyncBatchNorm.convert_sync_batchnorm(model, group)
    for norm in norms:
        norm.__class__ = SharedBatchNorm
        object.__setattr__(norm, "group", group)
    return model
