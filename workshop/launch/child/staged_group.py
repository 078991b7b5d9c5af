"""Ranks that share a GPU: a process group that carries CUDA tensors through the host's memory.

NCCL wants a GPU for each rank ("Duplicate GPU detected"). gloo does not care whose memory it is, as long as
it is the host's. So here a collective is three things: its inputs are copied to the host, gloo does it there,
and its outputs are copied back. Every collective is done so, also those that gloo could do with CUDA tensors
by itself, for it would make the same copies::

    through the host, waited for   broadcast all_reduce reduce all_gather gather scatter reduce_scatter
                                   all_to_all, into one tensor or coalesced; AVG as SUM and a division
    through the host, in flight    send and recv: a rank that sends must go on, or both wait for the other
    as they are                    barrier, and every tensor of the host

What is taught is right: values, bytes, memory, who waits for whom. What is not right is speed. Nothing
overlaps (a collective that was asked for asynchronously is over when the call returns), the copies go over
PCIe, and the ranks take turns at the GPU's multiprocessors. Do not compare seconds with NCCL's.

`use` puts the group in the place of NCCL and of gloo for this process, so that programs run as they are
written: `dist.init_process_group("nccl")`, a mesh of "cuda", DDP, FSDP2, DTensor, pipelines, DeepSpeed. One
thing a program must leave: `torch.device("cuda", LOCAL_RANK)`, for there is no such device; "cuda" is right
on both.
What gloo does on the host is asked for as an operator of torch's dispatcher, as with torch's own groups: so
a `TorchDispatchMode` that counts collectives (`workshop.measure`) sees the same calls here.

It needs no GPU itself: ``staged`` names the kinds of tensors that go through the host, and with "cpu" among
them all of it is tested but CUDA's own part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

c10d: Any = _distributed_c10d
NAME = "shared-gpu"


def _mapped(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The same nest of lists with each tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return [_mapped(change, one) for one in value]


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for one in value for tensor in _flat(one)]


def _finished(result: Any) -> Any:
    """A work that is over, with its result, as DDP's reducer and `wait_tensor` expect one."""
    devices: Any = sorted({t.device for t in _flat(result) if t.device.type != "cpu"}, key=str)
    future: Any = torch.futures.Future(devices=devices)
    future.set_result(result)
    return c10d._create_work_from_future(future)


class InFlight(dist.Work):
    """A message under way; whoever waits for it copies what has come to where it belongs."""

    def __init__(self, work: Any, arrive: Callable[[], None]) -> None:
        super().__init__()
        self._work, self._arrive, self._over = work, arrive, False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until it is there."""
        if not self._over:
            if timeout is None or timeout <= timedelta(0):
                self._work.wait()
            else:
                self._work.wait(timeout)
            self._arrive()
            self._over = True
        return True

    def is_completed(self) -> bool:
        """Whether it has come; what has come is put in its place."""
        if not self._over and self._work.is_completed():
            self.wait()
        return self._over

    def get_future(self) -> Any:
        """Waits: there is nobody else who would."""
        self.wait()
        future: Any = torch.futures.Future()
        future.set_result([])
        return future


_ProcessGroup: Any = dist.ProcessGroup  # its methods differ by version of torch, and so do their types
_ALL_TO_ALL_SINGLE = "all_to_all_single" if hasattr(_ProcessGroup, "all_to_all_single") else "alltoall_base"


class StagedGroup(_ProcessGroup):
    """Ranks of one group; ``staged``: the kinds of devices whose tensors go through the host."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, staged: frozenset[str]) -> None:
        super().__init__(rank, size)
        self.staged = staged
        self.gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)
        self.gloo._set_sequence_number_for_group()
        for kind in ("cpu", "cuda"):  # who asks for the backend behind the group finds gloo
            self._register_backend(torch.device(kind), dist.ProcessGroup.BackendType.GLOO, self.gloo)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        # A method of gloo's own would pass the dispatcher by. A plain group around it does not.
        self.on_host: Any = dist.ProcessGroup(store, rank, size)
        self.on_host._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self.gloo)
        self.on_host._set_default_backend(dist.ProcessGroup.BackendType.GLOO)

    def _set_group_name(self, name: str) -> None:
        """Both groups' name: whoever sees a collective of the inner one asks for it."""
        super()._set_group_name(name)
        self.on_host._set_group_name(name)

    def _set_group_desc(self, description: str) -> None:
        """Both groups' description, such as ``mesh_dp``."""
        super()._set_group_desc(description)
        self.on_host._set_group_desc(description)

    def getBackendName(self) -> str:  # noqa: N802 torch's own name for it
        """The name that `dist.get_backend` knows."""
        return NAME

    # -- through the host

    def _on_host(self, value: Any) -> Any:
        def moved(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type not in self.staged:
                return tensor
            return tensor.detach().to("cpu", copy=True).contiguous()

        return _mapped(moved, value)

    def _collective(
        self, name: str, outputs: Any, inputs: Sequence[Any], opts: Any, more: Sequence[Any] = ()
    ) -> Any:
        """Do ``name`` on the host and bring its outputs back; over when it returns."""
        mean = getattr(opts, "reduceOp", None) == dist.ReduceOp.AVG
        if mean:
            opts.reduceOp = dist.ReduceOp.SUM
        try:
            results = self._on_host(outputs)
            getattr(self.on_host, name)(results, *map(self._on_host, inputs), *more, opts).wait()
        finally:
            if mean:
                opts.reduceOp = dist.ReduceOp.AVG
        for target, result in zip(_flat(outputs), _flat(results), strict=True):
            if mean:
                result /= self.size()
            if target is not result:
                target.detach().copy_(result)
        return _finished(outputs)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Through the host."""
        return self._collective("allreduce", tensors, (), opts or c10d.AllreduceOptions())

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """One after the other."""
        for tensor in tensors:
            single = c10d.AllreduceOptions()
            if opts is not None:
                single.reduceOp = opts.reduceOp
            self.allreduce([tensor], single)
        return _finished(tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """Through the host."""
        return self._collective("broadcast", tensors, (), opts or c10d.BroadcastOptions())

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        """Through the host."""
        return self._collective("reduce", tensors, (), opts or c10d.ReduceOptions())

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Through the host."""
        return self._collective("allgather", outputs, (inputs,), opts or c10d.AllgatherOptions())

    def all_gather_single(self, output: Any, part: Any, opts: Any = None) -> Any:
        """Through the host, into one tensor."""
        pieces = [list(output.view(self.size(), -1).unbind(0))]
        self.allgather(pieces, [part.reshape(-1)], opts)
        return _finished([output])

    def all_gather_single_coalesced(self, outputs: Any, parts: Any, opts: Any = None) -> Any:
        """One after the other."""
        for output, part in zip(outputs, parts, strict=True):
            self.all_gather_single(output, part, opts)
        return _finished(outputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Through the host."""
        return self._collective("gather", outputs, (inputs,), opts or c10d.GatherOptions())

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Through the host."""
        return self._collective("scatter", outputs, (inputs,), opts or c10d.ScatterOptions())

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Through the host."""
        return self._collective("reduce_scatter", outputs, (inputs,), opts or c10d.ReduceScatterOptions())

    def reduce_scatter_single(self, output: Any, whole: Any, opts: Any = None) -> Any:
        """Through the host, from one tensor."""
        pieces = [list(whole.reshape(self.size(), -1).unbind(0))]
        flat = output.view(-1)
        self.reduce_scatter([flat], pieces, opts)
        return _finished([output])

    def reduce_scatter_single_coalesced(self, outputs: Any, wholes: Any, opts: Any = None) -> Any:
        """One after the other."""
        for output, whole in zip(outputs, wholes, strict=True):
            self.reduce_scatter_single(output, whole, opts)
        return _finished(outputs)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Lists of any sizes: gloo exchanges one tensor with sizes, so they are laid end to end."""
        one = inputs[0]
        source = torch.cat([tensor.reshape(-1) for tensor in inputs])
        sizes = [tensor.numel() for tensor in outputs]
        target = torch.empty(sum(sizes), dtype=one.dtype, device=one.device)
        self.all_to_all_single(target, source, sizes, [tensor.numel() for tensor in inputs], opts)
        for tensor, piece in zip(outputs, target.split(sizes), strict=True):
            tensor.copy_(piece.view_as(tensor))
        return _finished(outputs)

    def all_to_all_single(
        self, output: Any, whole: Any, output_sizes: Any = (), input_sizes: Any = (), opts: Any = None
    ) -> Any:
        """Through the host."""
        sizes = (list(output_sizes or ()), list(input_sizes or ()))
        return self._collective(_ALL_TO_ALL_SINGLE, output, (whole,), opts or c10d.AllToAllOptions(), sizes)

    # torch 2.11 and 2.12 call these
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # -- messages

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        """In flight: the copy on the host is kept until it has gone."""
        held = self._on_host(tensors)
        return InFlight(self.on_host.send(held, to, tag), lambda: held.clear())

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        """In flight: it is put into its place when it is waited for."""
        held = self._on_host(tensors)
        return InFlight(self.on_host.recv(held, source, tag), lambda: self._arrived(tensors, held))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """As `recv`."""
        held = self._on_host(tensors)
        return InFlight(self.on_host.recv_anysource(held, tag), lambda: self._arrived(tensors, held))

    @staticmethod
    def _arrived(tensors: Any, held: Any) -> None:
        for target, came in zip(tensors, held, strict=True):
            if target is not came:
                target.detach().copy_(came)

    # -- the rest is gloo's

    def barrier(self, opts: Any = None) -> Any:
        """gloo's own; what this rank has queued on its GPU is done before."""
        if "cuda" in self.staged and torch.cuda.is_available():
            torch.cuda.synchronize()
        return self.gloo.barrier(opts or c10d.BarrierOptions())

    def _get_sequence_number_for_group(self) -> int:
        return int(self.gloo._get_sequence_number_for_group())


def use(staged: frozenset[str] = frozenset({"cuda"})) -> None:
    """From now on every group of this process is a `StagedGroup`, whichever backend the program asks for."""

    def make(store: Any, rank: int, size: int, timeout: timedelta) -> StagedGroup:
        return StagedGroup(store, rank, size, timeout, staged)

    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, make, devices=["cpu", "cuda"])
    for name in ("init_process_group", "new_group"):
        for module in (dist, distributed_c10d):  # each its own: a rank that stays has another one in `dist`
            setattr(module, name, _instead(getattr(module, name), first=name == "init_process_group"))
    set_device = torch.cuda.set_device
    torch.cuda.set_device = lambda device: set_device(_shared_index(device))


def _instead(call: Callable[..., Any], first: bool) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)  # a device that is bound to a group is NCCL's
        if first:
            if args:
                args = (NAME, *args[1:])
            else:
                kwargs["backend"] = NAME
        else:
            kwargs["backend"] = None  # the default group's
        return call(*args, **kwargs)

    return wrapped


def _shared_index(device: Any) -> Any:
    """``torch.cuda.set_device(LOCAL_RANK)`` of a program that thinks every rank has a GPU."""
    index = device if isinstance(device, int) else torch.device(device).index
    return device if index is None or index < 0 else index % max(1, torch.cuda.device_count())
