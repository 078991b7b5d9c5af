"""The copies gloo makes and NCCL does not.

`ProcessGroupGloo` gathers into, and scatters from, a list of tensors. The flat variants that FSDP and DTensor use
(`all_gather_into_tensor`, `reduce_scatter_tensor`) are put on top by flattening: one extra copy of the full side lives
while the collective runs. A laptop measuring FSDP on gloo therefore needs more memory than a GPU would. Counting the
copy makes a rehearsed peak equal to what is measured on gloo; leaving it out tells what NCCL will need.
"""

from __future__ import annotations

from typing import Any

import torch


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


