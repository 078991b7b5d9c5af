"""A world of which only one rank exists.

torch has a process group that talks to nobody: `FakeProcessGroup` answers every collective at once. Whatever
backend the program asks for, it gets this one; rank and world size come from the request. Python objects
cannot be answered that way, so object collectives return what this rank itself said: ranks that agree is what
nearly every program assumes when it gathers objects.

Meshes are bookkeeping over small integer tensors whose values matter, so they are always built outside the
fake mode.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from workshop.measure.swap import swap
from workshop.rehearse.known import multiply
from workshop.rehearse.request import Request


def set_environment(request: Request) -> None:
    """What torchrun would have set for this rank."""
    local = min(request.local_world_size, request.world_size)
    os.environ |= {
        "RANK": str(request.rank),
        "WORLD_SIZE": str(request.world_size),
        "LOCAL_RANK": str(request.rank % local),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(request.rank // local),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "rehearsal",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def install(request: Request) -> None:
    """Replace the way a process joins a world, in this process."""
    start = dist.init_process_group

    @functools.wraps(start)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if not dist.is_initialized():
            start("fake", rank=request.rank, world_size=request.world_size, store=FakeStore())

    _replace(init_process_group)
    _replace(_of_nobody(dist.new_group))
    _replace(_sums_of_alike_ranks(dist.all_reduce))
    for function in (_all_gather_object, _gather_object, _broadcast_object_list, _scatter_object_list):
        _replace(function)
    for owner in (
        dist,
        sys.modules["torch.distributed.rendezvous"],
    ):  # a store of one's own would listen on a port
        swap(owner, "TCPStore", _NoListener)
    for owner in (dist, dist.distributed_c10d):
        swap(owner, "monitored_barrier", lambda *args, **kwargs: None)
        swap(owner, "get_backend", lambda group=None: "gloo")
    swap(torch.multiprocessing, "spawn", _spawn)
    _hold_tensors_of_async_calls()
    _mesh_outside_fake_mode()


def _replace(function: Callable[..., Any]) -> None:
    """Wherever a torch module holds the function of this name: `init_device_mesh` starts a world by its own
    reference."""
    name = function.__name__.removeprefix("_")
    original = getattr(dist.distributed_c10d, name)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original:
            setattr(module, name, function)


class _NoListener(dist.HashStore):
    """Instead of a `TCPStore`, which opens a port: keys and values in this process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()


def _of_nobody(inner: Callable[..., Any]) -> Callable[..., Any]:
    """A further group talks to nobody either, whatever backend, options and device the program names."""

    @functools.wraps(inner)
    def new_group(ranks: Any = None, timeout: Any = None, *_: Any, **named: Any) -> Any:
        kept = {key: named[key] for key in ("use_local_synchronization", "group_desc") if key in named}
        return inner(ranks, timeout, **kept)

    return new_group


def _sums_of_alike_ranks(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Where this rank's number is known, the others' is taken to be the same, the sum n times as large."""

    @functools.wraps(inner)
    def all_reduce(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, *args: Any, **kw: Any) -> Any:
        work = inner(tensor, op, group, *args, **kw)
        if op == dist.ReduceOp.SUM and type(tensor) is FakeTensor:
            multiply(tensor, dist.get_world_size(group))
        return work if work is None else _AnsweredWork(work, tensor)

    return all_reduce


def _spawn(fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, **kwargs: Any) -> None:
    """A program that starts its ranks itself gets the one rank that is here."""
    fn(int(os.environ["RANK"]) % nprocs, *args)


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    object_list[:] = [obj] * len(object_list)


def _gather_object(obj: Any, object_gather_list: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def _broadcast_object_list(object_list: list[Any], *args: Any, **kwargs: Any) -> None:
    return None


def _scatter_object_list(
    output: list[Any], inputs: list[Any] | None = None, *args: Any, **kwargs: Any
) -> None:
    if inputs:
        output[0] = inputs[min(dist.get_rank(), len(inputs) - 1)]


class _HeldWork(dist.Work):
    """A request in flight keeps its tensors alive until it is waited for and dropped, as gloo's and NCCL's
    do."""

    def __init__(self, work: dist.Work, tensors: Any) -> None:
        super().__init__()
        self._work = work
        self._tensors = tensors

    def wait(self, *args: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        return self._work.get_future()


class _AnsweredWork(_HeldWork):
    """Its future is done, and has the tensor: hooks of DistributedDataParallel go on from there."""

    def get_future(self) -> Any:
        future = torch.futures.Future()  # type: ignore[var-annotated]
        future.set_result([self._tensors])
        return future


def _hold_tensors_of_async_calls() -> None:
    for name in ("isend", "irecv"):
        inner = getattr(dist.distributed_c10d, name)

        def held(tensor: torch.Tensor, *args: Any, _inner: Any = inner, **kwargs: Any) -> Any:
            return _HeldWork(_inner(tensor, *args, **kwargs), tensor)

        replacement = functools.wraps(inner)(held)
        setattr(dist, name, replacement)
        setattr(dist.distributed_c10d, name, replacement)


def _mesh_outside_fake_mode() -> None:
    original = device_mesh.init_device_mesh
    outside = _outside(original)
    for module in list(sys.modules.values()):  # several torch modules hold their own reference
        if getattr(module, "init_device_mesh", None) is original:
            module.init_device_mesh = outside  # type: ignore[attr-defined]
    for name, member in list(vars(DeviceMesh).items()):
        if (
            callable(member)
            and not isinstance(member, (staticmethod, classmethod, type))
            and name != "__hash__"
        ):
            setattr(DeviceMesh, name, _outside(member))
        elif isinstance(member, staticmethod):
            setattr(DeviceMesh, name, staticmethod(_outside(member.__func__)))


def _outside(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def outside(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return outside
