"""What carries DDP's gradients, by name.

A *communication hook* takes the place of DDP's all_reduce: it is given each full bucket and returns a future
with the mean over ranks. So whatever sends fewer bytes is a hook, and the training loop does not change::

    model = wrap_ddp(model, hook="powersgd", rank=2)

================  ==================================================================  ========================
hook              what travels for each fp32 gradient                                 where
================  ==================================================================  ========================
none              4 bytes                                                             DDP's own all_reduce
fp16              2 bytes                                                             torch
bf16              2 bytes                                                             `bf16_hook`
powersgd          rank * (rows + columns) numbers for a matrix (arXiv 1905.13727)     torch
powersgd-by-hand  the same                                                            `.powersgd`
sign              1 bit, and 4 bytes for each 1,024 (arXiv 1901.09847)                `.signs`
================  ==================================================================  ========================

PowerSGD and sign remember what they left out (*error feedback*). DDP settles its buckets after the first
step, so whatever remembers something about a bucket sends the first ``start`` = 2 steps in full.
"""

# No `from __future__ import annotations` here: DDP compares a hook's annotations with its own classes.
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from workshop.parallel.powersgd import PowerSGD, powersgd_hook
from workshop.parallel.signs import SignState, sign_hook

Group = dist.ProcessGroup | None


@dataclass(frozen=True)
class Hook:
    """A hook, what makes its state from the group and options, and the options' names."""

    hook: Callable[..., Any]
    make_state: Callable[..., Any] = lambda group: group
    options: tuple[str, ...] = ()


def bf16_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Mean over ranks of a bucket, (numbers,), sent as bfloat16: half the bytes; a future of it, in place.

    fp32 gradients are rounded to bf16, summed on the wire, and widened again. bf16 keeps fp32's range, so
    nothing overflows; dividing before the sum keeps it in range for fp16 too. What is lost is precision: 8
    bits of mantissa, and the additions on the way round as well. No memory, no error feedback: rounding to
    the nearest has no preferred direction, so the errors of many steps cancel by themselves.

    PyTorch has the same hook (`default_hooks.bf16_compress_hook`), which it refuses without NCCL.
    """
    flat = bucket.buffer()
    narrow = flat.to(torch.bfloat16).div_(dist.get_world_size(group))
    sending = dist.all_reduce(narrow, group=group, async_op=True).get_future()
    return sending.then(lambda _: flat.copy_(narrow))


def _torch_powersgd(group: Group, rank: int = 2, start: int = 2) -> powerSGD_hook.PowerSGDState:
    return powerSGD_hook.PowerSGDState(
        process_group=group,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=start,
        min_compression_rate=1,  # compress whatever becomes smaller
    )


HOOKS: dict[str, Hook | None] = {
    "none": None,
    "fp16": Hook(default_hooks.fp16_compress_hook),
    "bf16": Hook(bf16_hook),
    "powersgd": Hook(powerSGD_hook.powerSGD_hook, _torch_powersgd, ("rank", "start")),
    "powersgd-by-hand": Hook(powersgd_hook, PowerSGD, ("rank", "start")),
    "sign": Hook(sign_hook, SignState, ("start", "error_feedback")),
}
"""Every hook by name; None is DDP's own all_reduce."""
