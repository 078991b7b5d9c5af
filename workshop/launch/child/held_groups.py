"""Groups that others hold: one that DDP has used stays until its process ends, a cut one of DeepSpeed goes.

When a DDP model outlives the group (it is a local of the function that ends with destroy_process_group(), or
with Accelerate's end_training()), the model's end is the group's end. gloo's group does not always come back
from that: the program hangs where it only had to return, under plain torchrun too (torch 2.13; 4 of 30 runs
of a small Accelerate program on two ranks here). With a reference that outlives both it was none of 30. The
end of the process closes the connections.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_held: list[Any] = []


def hold_groups_of_ddp() -> None:
    """From now on every DDP model's group is held."""
    make = DistributedDataParallel.__init__

    @functools.wraps(make)
    def init(self: DistributedDataParallel, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        if not any(group is self.process_group for group in _held):
            _held.append(self.process_group)

    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


def forget_groups_of_deepspeed() -> None:
    """A cut group is in no registry of torch any more. DeepSpeed keeps its copy of the world group for the
    life of the process, and its next ``initialize`` would fail on it: let it make another one.
    """
    kept = sys.modules.get("deepspeed.utils.groups")
    for name, value in list(vars(kept).items()) if kept else ():
        if isinstance(value, dist.ProcessGroup):
            setattr(kept, name, None)
