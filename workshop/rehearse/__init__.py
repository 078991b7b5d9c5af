"""Rehearse: run your own training code as one rank of any world, on tensors that have a shape but no bytes.

    from workshop.rehearse import rehearse

    rehearse("train.py", world_size=8192, rank=17)
    rehearse_ranks("train.py", 8192, (0, 17, 8191))

The code is not translated and not modelled: the same `init_process_group`, `fully_shard`, `backward` and
`step` are executed, for two steps, in a process of their own. Tensors are *fake* (shape, dtype and strides,
no storage) and the process group is *fake* (it answers at once), so one rank of a cluster fits into a laptop.
What comes back is exact where bytes are concerned: peak memory by part, its timeline, every collective with
its bytes and axis, FLOPs.

This package's front door does not import torch; the child process does.
"""

import sys
from types import ModuleType
from typing import Any

from workshop.rehearse.report import Rehearsal, RehearsalError
from workshop.rehearse.request import Roofline
from workshop.rehearse.run import rehearse
from workshop.rehearse.several import Rehearsals, parse_ranks, rehearse_ranks

__all__ = [
    "Rehearsal",
    "RehearsalError",
    "Rehearsals",
    "Roofline",
    "parse_ranks",
    "rehearse",
    "rehearse_ranks",
]


class _Room(ModuleType):
    """Makes the package callable: its name is also what `from workshop import` gives for the function."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return rehearse(*args, **options)


sys.modules[__name__].__class__ = _Room
