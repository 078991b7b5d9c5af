"""The copies gloo makes and NCCL does not.

`ProcessGroupGloo` gathers into, and scatters from, a list of tensors. The flat variants that FSDP and DTensor
use (`all_gather_into_tensor`, `reduce_scatter_tensor`) are put on top by flattening: one extra copy of the
full side lives while the collective runs. A laptop measuring FSDP on gloo therefore needs more memory than a
GPU would. Counting the copy makes a rehearsed peak equal to what is measured on gloo; leaving it out tells
what NCCL will need.

An asynchronous collective runs in gloo's thread, somewhere between the call and the wait; the copy is kept
for that whole time here. In reality the thread drops its copy a little after it has reported the collective
done: on a busy machine the copy lives on beside the next few operators, and the measured peak wanders upwards
by a per cent or two from step to step. That lateness is chance, and is not modelled.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
import torch.distributed as dist

from workshop.measure.ledger import Ledger

_Copy = tuple[Ledger, int, int]  # where it is entered, its owner there, its bytes
_UNDER_WAY: list[list[_Copy]] = []  # one entry while an asynchronous call is being made


def extra_copy(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> int:
    """Bytes that gloo allocates for the duration of this collective."""
    name = func._schema.name
    if name == "c10d::_allgather_base_":
        return _bytes(args[0])
    if name == "c10d::_reduce_scatter_base_":
        return _bytes(args[1])
    if name == "_c10d_functional::all_gather_into_tensor":
        return _bytes(args[0]) * int(args[1])
    if name == "_c10d_functional::reduce_scatter_tensor":
        return _bytes(args[0])
    return 0


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def count_copy(ledger: Ledger, num_bytes: int) -> None:
    """Enter a copy: for a moment, or, inside an asynchronous call, until that is waited for."""
    if _UNDER_WAY:
        _UNDER_WAY[-1].append((ledger, ledger.open(num_bytes, "communication"), num_bytes))
    else:
        ledger.pulse(num_bytes, "communication")


class _CopyingWork(dist.Work):
    """A request whose copies die when it is waited for, or dropped."""

    def __init__(self, work: dist.Work, copies: list[_Copy]) -> None:
        super().__init__()
        self._work = work
        self._release = weakref.finalize(self, _close, copies)

    def wait(self, *args: Any) -> bool:
        self._release()
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        return self._work.get_future()


def _close(copies: list[_Copy]) -> None:
    for ledger, owner, num_bytes in copies:
        ledger.change(owner, -num_bytes)


def hold_copies_of_async_calls() -> None:
    """Make asynchronous flat collectives keep their copies until the wait, in this process."""
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        inner = getattr(dist.distributed_c10d, name)

        def call(*args: Any, _inner: Any = inner, **kwargs: Any) -> Any:
            if not kwargs.get("async_op"):
                return _inner(*args, **kwargs)
            copies: list[_Copy] = []
            _UNDER_WAY.append(copies)
            try:
                work = _inner(*args, **kwargs)
            finally:
                _UNDER_WAY.pop()
            return _CopyingWork(work, copies)

        replacement = functools.wraps(inner)(call)
        setattr(dist, name, replacement)
        setattr(dist.distributed_c10d, name, replacement)
