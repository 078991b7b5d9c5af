"""Count the bytes a rank sends, whichever function of torch.distributed sends them.

`dist.send`, `isend` and `batch_isend_irecv` all end in `ProcessGroup.send`, and the collectives in
methods of that class too. Wrapping the methods counts them all, however the learner imported the
functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed import ProcessGroup

# Methods by the collective they serve; versions of torch differ in which of them exist.
ALL_GATHER = ("allgather", "_allgather_base", "all_gather_single", "allgather_coalesced")
OTHERS = {
    "all_reduce": ("allreduce", "allreduce_coalesced"),
    "reduce_scatter": ("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"),
    "all_to_all": ("alltoall", "alltoall_base", "all_to_all_single"),
    "broadcast": ("broadcast",),
    "reduce": ("reduce",),
    "gather": ("gather",),
    "scatter": ("scatter",),
}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Inside: `counter["bytes"]` is what this rank sent, `counter["all_reduce"]` how often it called that.

    `send` counts its tensor. An all-gather counts its input world_size - 1 times: each rank's part must reach
    every other rank, and in a ring each rank passes on that much.
    """
    counter: Counter[str] = Counter()

    def count_send(_: ProcessGroup, tensors: list[torch.Tensor], *__: Any) -> None:
        counter["bytes"] += _nbytes(tensors)

    def count_all_gather(group: ProcessGroup, _: Any, inputs: Any, *__: Any) -> None:
        counter["bytes"] += _nbytes(inputs) * (group.size() - 1)

    counts: dict[str, Callable[..., None]] = {
        "send": count_send,
        **dict.fromkeys(ALL_GATHER, count_all_gather),
    }
    for collective, methods in OTHERS.items():
        counts |= dict.fromkeys(methods, lambda *_, name=collective: counter.update([name]))
    # From the class's own dictionary: getattr would strip the descriptor that passes self on.
    originals = {method: vars(ProcessGroup)[method] for method in counts if method in vars(ProcessGroup)}
    for method, original in originals.items():
        setattr(ProcessGroup, method, _counting(original, counts[method]))
    try:
        yield counter
    finally:
        for method, original in originals.items():
            setattr(ProcessGroup, method, original)


def _counting(original: Any, count: Callable[..., None]) -> Callable[..., Any]:
    def method(self: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        count(self, *args)
        return original.__get__(self)(*args, **kwargs)

    return method


def _nbytes(tensors: Any) -> int:
    """Bytes of a tensor, or of all tensors in lists of them."""
    if isinstance(tensors, torch.Tensor):
        return tensors.nbytes
    return sum(map(_nbytes, tensors))
