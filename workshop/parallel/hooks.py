"""What carries DDP's gradients, by name.

A *communication hook* takes the place of DDP's all_reduce: it is given each full bucket and returns a future
with the mean over ranks. So whatever sends fewer bytes is a hook, and the training loop does not change::

    model = wrap_ddp(model, hook="powersgd", rank=2)

================  ==================================================================  ========================
hook              what travels for each fp32 gradient                                 where
================  ==================================================================  ========================
none              4 bytes                                                             DDP's own all_reduce
fp16              2 bytes                                                             torch
bf16              2 bytes                                                             `workshop.parallel.half`
powersgd          rank * (rows + columns) numbers for a matrix (arXiv 1905.13727)     torch
powersgd-by-hand  the same                                                            `.powersgd`
sign              1 bit, and 4 bytes for each 1,024 (arXiv 1901.09847)                `.signs`
================  ==================================================================  ========================

PowerSGD and sign remember what they left out (*error feedback*). DDP settles its buckets after the first
step, so whatever remembers something about a bucket sends the first ``start`` = 2 steps in full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from workshop.parallel.half import bf16_hook
from workshop.parallel.powersgd import PowerSGD, powersgd_hook
from workshop.parallel.signs import SignState, sign_hook

Group = dist.ProcessGroup | None


@dataclass(frozen=True)
class Hook:
    """A hook, what makes its state from the group and options, and the options' names."""

    hook: Callable[..., Any]
    make_state: Callable[..., Any] = lambda group: group
    options: tuple[str, ...] = ()


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
