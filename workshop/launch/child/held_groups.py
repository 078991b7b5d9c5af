"""A group that DDP has used stays until its process ends.

When a DDP model outlives the group (it is a local of the function that ends with destroy_process_group(), or
with Accelerate's end_training()), the model's end is the group's end. gloo's group does not always come back
from that: the program hangs where it only had to return, under plain torchrun too (torch 2.13; 4 of 30 runs
of a small Accelerate program on two ranks here). With a reference that outlives both it was none of 30. The
end of the process closes the connections.
"""

from __future__ import annotations

import functools
from typing import Any

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
