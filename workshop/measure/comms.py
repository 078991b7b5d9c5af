"""Collectives: which, how many, how many bytes, between whom.

Every collective of PyTorch is an operator of its dispatcher: `torch.distributed` calls `c10d::allreduce_`,
DTensor and the functional collectives call `_c10d_functional::all_reduce`, and DDP's C++ reducer calls
`c10d::allreduce_` as well. So whoever sits in the dispatcher (a `TorchDispatchMode`) sees them all, from
Python or C++, on gloo, NCCL or a fake process group.

Two numbers each, payload and wire bytes: `workshop.predict.collectives` defines them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from workshop.facts.traffic import Traffic
from workshop.predict.collectives import COLLECTIVES, wire_bytes

NAMESPACES = ("c10d", "_c10d_functional", "_dtensor")


@dataclass(frozen=True)
class _Form:
    """How to read one operator: the collective it is, the argument that holds its payload, and whether that
    argument is one rank's shard of the payload."""

    name: str
    argument: int
    is_shard: bool = False


_FORMS = {
    "c10d::allreduce_": _Form("all_reduce", 0),
    "c10d::allreduce_coalesced_": _Form("all_reduce", 0),
    "c10d::broadcast_": _Form("broadcast", 0),
    "c10d::reduce_": _Form("reduce", 0),
    "c10d::allgather_": _Form("all_gather", 0),
    "c10d::_allgather_base_": _Form("all_gather", 0),
    "c10d::allgather_coalesced_": _Form("all_gather", 0),
    "c10d::allgather_into_tensor_coalesced_": _Form("all_gather", 0),
    "c10d::reduce_scatter_": _Form("reduce_scatter", 1),
    "c10d::_reduce_scatter_base_": _Form("reduce_scatter", 1),
    "c10d::reduce_scatter_tensor_coalesced_": _Form("reduce_scatter", 1),
    "c10d::gather_": _Form("gather", 1, is_shard=True),
    "c10d::scatter_": _Form("scatter", 0, is_shard=True),
    "c10d::alltoall_": _Form("all_to_all", 1),
    "c10d::alltoall_base_": _Form("all_to_all", 1),
    "c10d::send": _Form("send", 0),
    "c10d::recv_": _Form("recv", 0),
    "c10d::recv_any_source_": _Form("recv", 0),
    "_c10d_functional::all_reduce": _Form("all_reduce", 0),
    "_c10d_functional::all_reduce_": _Form("all_reduce", 0),
    "_c10d_functional::all_reduce_coalesced": _Form("all_reduce", 0),
    "_c10d_functional::all_reduce_coalesced_": _Form("all_reduce", 0),
    "_c10d_functional::all_gather_into_tensor": _Form("all_gather", 0, is_shard=True),
    "_c10d_functional::all_gather_into_tensor_out": _Form("all_gather", 0, is_shard=True),
    "_c10d_functional::all_gather_into_tensor_coalesced": _Form("all_gather", 0, is_shard=True),
    "_c10d_functional::reduce_scatter_tensor": _Form("reduce_scatter", 0),
    "_c10d_functional::reduce_scatter_tensor_out": _Form("reduce_scatter", 0),
    "_c10d_functional::reduce_scatter_tensor_coalesced": _Form("reduce_scatter", 0),
    "_c10d_functional::all_to_all_single": _Form("all_to_all", 0),
    "_c10d_functional::isend": _Form("send", 0),
    "_c10d_functional::irecv": _Form("recv", 0),
    "_c10d_functional::broadcast": _Form("broadcast", 0),
    "_c10d_functional::broadcast_": _Form("broadcast", 0),
    "_dtensor::shard_dim_alltoall": _Form("all_to_all", 0),
}
SILENT = frozenset(
    {
        "c10d::barrier",
        "c10d::check_for_nan",
        "c10d::monitored_barrier_",
        "_c10d_functional::wait_tensor",
        "_c10d_functional::_wrap_tensor_autograd",
    }
)
"""Operators that wait, or only wrap a result; no bytes travel."""


@dataclass(frozen=True)
class Collective:
    """One call: its name, its group and the full side of its tensor in bytes."""

    name: str
    axis: str
    group_size: int
    payload_bytes: int

    @property
    def wire_bytes(self) -> float:
        """Bytes this rank sends in a ring; for an operator that is not known, all of its payload."""
        if self.group_size <= 1 or self.name == "recv":
            return 0.0
        if self.name not in COLLECTIVES:
            return float(self.payload_bytes)
        return float(wire_bytes(self.name, self.payload_bytes, self.group_size))


def describe(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Collective | None:
    """The collective that calling `func(*args, **kwargs)` is, or None if it only waits.

    An operator the table does not know keeps its own name, with the bytes of all its tensors: not counting it
    would be a lie, and stopping a training run for it would be worse.
    """
    schema_name = func._schema.name
    if schema_name in SILENT:
        return None
    form = _FORMS.get(schema_name)
    group = _group(func, args, kwargs)
    size = group.size() if group is not None else 1
    if form is None:
        return Collective(schema_name, axis_name(group), size, _num_bytes(args))
    payload = _num_bytes(args[form.argument]) * (size if form.is_shard else 1)
    return Collective(form.name, axis_name(group), size, payload)


def axis_name(group: dist.ProcessGroup | None) -> str:
    """The mesh axis a group belongs to; `world` for the default group; else its ranks."""
    if group is None:
        return "unknown"
    description = group.group_desc
    if description == "default_pg":
        return "world"
    if description.startswith("mesh_") and description != "mesh_default":
        return description.removeprefix("mesh_")
    # by name: of ranks that share a GPU it is a group within the one that torch has on its list
    listed = dist.distributed_c10d._resolve_process_group(group.group_name)
    ranks = dist.get_process_group_ranks(listed)
    if len(ranks) == dist.get_world_size():
        return "world"
    shown = ", ".join(map(str, ranks[:3]))
    return f"ranks {shown}, ... {ranks[-1]}" if len(ranks) > 4 else f"ranks {', '.join(map(str, ranks))}"


def tabulate(calls: list[Collective]) -> list[Traffic]:
    """Calls of one kind over one group as one row, in the order of first use."""
    rows: dict[tuple[str, str, int], list[float]] = {}
    for call in calls:
        row = rows.setdefault((call.name, call.axis, call.group_size), [0, 0, 0.0])
        row[0] += 1
        row[1] += call.payload_bytes
        row[2] += call.wire_bytes
    return [Traffic(*key, int(n), int(payload), round(wire)) for key, (n, payload, wire) in rows.items()]


def _num_bytes(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tree_leaves(tensors) if isinstance(t, torch.Tensor))


def _group(
    func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dist.ProcessGroup | None:
    for position, argument in enumerate(func._schema.arguments):
        if argument.name in ("process_group", "group_name", "group"):
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            if isinstance(value, str):  # functional collectives name their group
                return dist.distributed_c10d._resolve_process_group(value)  # type: ignore[arg-type]
            return value if isinstance(value, dist.ProcessGroup) else dist.ProcessGroup.unbox(value)  # type: ignore[arg-type]
    return None
