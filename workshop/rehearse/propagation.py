"""DTensor's reckoning of one optimizer step, without the part that grows with the square of the parameters.

A fused or foreach optimizer hands all parameters to one operator. For each of them torch 2.13 asks all
arguments of the call whether any is a `_StridedShard`, which only FSDP over a dim that tensor parallelism has
cut makes. Of the rehearsal of a model with 291 parameters that was a quarter. Here each call is asked once,
and torch's own function does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.tensor import _sharding_prop
from torch.distributed.tensor.placement_types import _StridedShard

from workshop.measure.swap import swap

_NAME = "_propagate_use_strided_shard_flag"  # torch 2.11 and 2.12 have none


def ask_each_call_once() -> Callable[[], None]:
    """Put it in place; returns what takes it away."""
    usual = getattr(_sharding_prop, _NAME, None)
    if usual is None:
        return lambda: None
    newest: list[Any] = [None, False]  # the newest call, and whether one of its arguments is strided

    def propagate(strategy: Any, call: Any) -> None:
        if newest[0] is not call:
            placements = (placement for spec in call.args_spec for placement in spec.placements)
            newest[:] = call, any(isinstance(placement, _StridedShard) for placement in placements)
        if newest[1]:
            usual(strategy, call)

    return swap(_sharding_prop, _NAME, propagate)
