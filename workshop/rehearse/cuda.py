"""`device="cuda"` on a machine that has none.

Most training scripts name the device in their first lines, and a laptop cannot run them. A fake tensor
needs no device to live on: it may say `cuda:0`. Two things stand in its way, and are moved here.

* C++ asks a tensor for its device too, and then for that device's streams and guards, which a CPU's build
  of torch does not have (the autograd engine even ends the process). So C++ is told `cpu`, Python `cuda:0`.
  Where C++ then makes a tensor "on the device of that one", it is moved to where it belongs.
* `torch.cuda` is a module full of functions that fail. Those that only set or wait do nothing here; those
  that ask for bytes are answered from the ledger, and what is reserved by the caching allocator's rule;
  streams and events are there and order nothing; what needs a real GPU's facts (its name, its memory) is
  refused.

What is rehearsed this way are a GPU's dtypes (see `workshop.rehearse.autocast`), optimizers (`foreach` is
the default on CUDA) and memory spaces: the peak is of tensors on the device, and the host's are counted
apart. The kernels' own needs are a CPU's: attention and convolution keep what they keep here, but for heads
that a GPU's attention pads (`workshop.rehearse.padded_heads`).

`is_available()` and `device_count()` tell the truth, no and none, unless the rehearsal was asked to
pretend; a program that has a way without CUDA takes it, as it would on this machine.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor, _dispatch
from torch.distributed.tensor import _random as random

from workshop.measure.swap import swap
from workshop.predict.memory.allocator import replay
from workshop.rehearse.autocast import FakeGpuAutocast
from workshop.rehearse.fakemode import told_to_cpp
from workshop.rehearse.padded_heads import pad_heads_as_a_gpu_does
from workshop.rehearse.program import Program
from workshop.rehearse.refusal import NotRehearsableError
from workshop.rehearse.request import Request
from workshop.rehearse.tracer import Tracer

_OPERATORS = torch._ops.__file__
_DEVICE = torch.ops.prim.device.default
_TO_COPY = torch.ops.aten._to_copy.default
CPU = torch.device("cpu")
_ROOM = Path(torch.__file__).parent
_VMAP = str(_ROOM / "_functorch" / "vmap.py")
_PARALLEL = tuple(
    str(_ROOM.joinpath(*part)) for part in (("distributed", "fsdp"), ("utils", "checkpoint.py"))
)
_ACCELERATE = str(Path("accelerate", "state.py"))  # decides whether the ranks train together
_NOTE = (
    'this machine has no CUDA device: tensors on "cuda" are rehearsed with the kernels of a CPU; what a '
    "GPU's allocator rounds up is in what is reserved; the workspaces of cuBLAS and NCCL come on top"
)
_A_NUMBER = "Cannot access accelerator device when none is available"
_SILENT = (
    "synchronize empty_cache ipc_collect manual_seed manual_seed_all init seed seed_all _lazy_init "
    "set_stream set_rng_state set_rng_state_all reset_peak_memory_stats reset_accumulated_memory_stats "
    "reset_max_memory_allocated set_per_process_memory_fraction"
).split()
_FACTS = "get_device_properties get_device_name mem_get_info memory_stats memory_snapshot utilization".split()


class FakeGpu:
    """The one GPU of a rank that is not there. `hint()` says whether the program asked for it in vain."""

    def __init__(self, request: Request, program: Program, tracer: Tracer, notes: dict[str, None]) -> None:
        self._program = program
        self._tracer = tracer
        self._notes = notes
        self._index = int(os.environ.get("LOCAL_RANK", "0")) if request.pretend_cuda else 0
        self._count = min(request.local_world_size, request.world_size)
        self._pretend = request.pretend_cuda
        self._asked: tuple[str, int] | None = None
        self._autocast: FakeGpuAutocast | None = None
        self._tensors()
        self._module()
        self._questions()
        pad_heads_as_a_gpu_does()

    def hint(self, message: str) -> str:
        """For the end of a message."""
        if _A_NUMBER in message:
            return '; where a number stands for a GPU, write device=f"cuda:{number}"'
        if self._asked is None:
            return ""
        return (
            f"\n{self._program.quote(self._asked).strip()} was answered with the truth, that there is no "
            "CUDA device here; --cuda (in Python pretend_cuda=True) rehearses the program as on GPUs"
        )

    # Tensors.

    def _tensors(self) -> None:
        inner = FakeTensor.__torch_dispatch__

        def dispatch(cls: Any, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is _DEVICE and not args[0].fake_mode.in_kernel_invocation:
                return told_to_cpp(args[0])
            return inner(func, kinds, args, kwargs or {})

        def to(tensor: FakeTensor, *args: Any, **kwargs: Any) -> Any:
            return self._moved(tensor, *args, **kwargs)

        def cuda(tensor: FakeTensor, device: Any = None, *_: Any, **kwargs: Any) -> Any:
            return to(tensor, torch.device("cuda", device) if isinstance(device, int) else device or "cuda")

        members: dict[str, Any] = {
            "__torch_dispatch__": classmethod(dispatch),
            "to": to,
            "cuda": cuda,
            "cpu": lambda tensor, **_: to(tensor, CPU),
            "type_as": lambda tensor, other: to(tensor, other.device, other.dtype),
            "pin_memory": lambda tensor, *_: tensor.clone() if tensor.device == CPU else tensor,
            "is_pinned": lambda tensor, *_: False,
            "record_stream": lambda tensor, stream: None,
            "is_cuda": property(lambda tensor: tensor.device.type == "cuda"),
            "is_cpu": property(lambda tensor: tensor.device.type == "cpu"),
            "data": property(_plain_data.__get__, _set_data),
            "get_device": lambda tensor: -1 if tensor.device.index is None else tensor.device.index,
        }
        for name, member in members.items():
            setattr(FakeTensor, name, member)
        for name in ("is_cuda", "is_cpu"):
            setattr(DTensor, name, members[name])
        # It is where its part is; C++ was told the CPU.
        DTensor.device = property(lambda tensor: tensor._local_tensor.device)  # type: ignore[assignment]
        self._numbers()

    def _numbers(self) -> None:
        """`module.to(0)`."""
        module_to = torch.nn.Module.to

        def to_number(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if args and type(args[0]) is int:
                args = (torch.device("cuda", args[0]), *args[1:])
            return module_to(module, *args, **kwargs)

        swap(torch.nn.Module, "to", to_number)

    def _moved(self, tensor: FakeTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """`tensor.to(...)`. The original would ask C++ where the tensor is."""
        copy = kwargs.pop("copy", False)
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        if args and type(args[0]) is int:
            args = (torch.device("cuda", args[0]), *args[1:])
        device, dtype, _, memory_format = torch._C._nn._parse_to(*args[:3], **kwargs)
        changes: dict[str, Any] = {}
        if device is not None and self.indexed(device) != tensor.device:
            changes["device"] = self.indexed(device)
        if dtype is not None and dtype is not tensor.dtype:
            changes["dtype"] = dtype
        if memory_format not in (None, torch.preserve_format) and not tensor.is_contiguous(
            memory_format=memory_format
        ):
            changes["memory_format"] = memory_format
        if list(changes) == ["device"] and changes["device"].type == tensor.device.type == "cpu":
            return tensor.clone()  # from `cpu` to `cpu:0`
        return _TO_COPY(tensor, **changes) if changes or copy else tensor

    def indexed(self, device: torch.device) -> torch.device:
        """`cuda` is the current one; `cpu:0` stays, for torch too copies to it."""
        if device.type == "cuda" and device.index is None:
            return torch.device("cuda", self._index)
        return device

    def place(self, func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments of an operator, with the device it should have been given."""
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": None}
        device = kwargs.get("device")
        if device is None:
            return kwargs
        caller = _caller(sys._getframe(2))
        if device.type == "cuda":
            self._notes.setdefault(_NOTE)
            if func is _TO_COPY and device.index == 0 and caller is not FakeGpu._moved.__code__:
                device = torch.device("cuda")  # `torch.tensor` in C++, which takes the first for the current
            return {**kwargs, "device": self.indexed(device)}
        if not self._used():
            return kwargs
        if func is _TO_COPY:
            keep = caller is FakeGpu._moved.__code__ or args[0].device.type != "cuda"
            return kwargs if keep else {key: value for key, value in kwargs.items() if key != "device"}
        in_cpp = caller.co_name in ("_engine_run_backward", "run_backward")  # a formula of autograd's
        if in_cpp or _under_vmap(sys._getframe(2)):  # or a rule of vmap's
            return {**kwargs, "device": self.indexed(torch.device("cuda"))}
        return kwargs

    # torch.cuda.

    def _module(self) -> None:
        cuda = torch.cuda
        for name in _SILENT:
            _put(cuda, name, lambda *_, **__: None)
        for name in _FACTS:
            _put(cuda, name, self._refuse(f"torch.cuda.{name}"))
        ledger = self._tracer.device_ledger
        _put(cuda, "memory_allocated", lambda *_: ledger.live_bytes)
        _put(cuda, "max_memory_allocated", lambda *_: ledger.report(1).peak_bytes)
        _put(cuda, "memory_reserved", lambda *_: replay(ledger.changes()).reserved)
        _put(cuda, "max_memory_reserved", lambda *_: replay(ledger.changes()).peak_reserved)
        _put(cuda, "memory_summary", lambda *_, **__: "")
        _put(cuda, "set_device", self._set_device)
        _put(cuda, "device", _nothing)
        _put(cuda, "current_device", lambda: self._index)
        _put(cuda, "is_initialized", lambda: True)
        _put(cuda, "is_bf16_supported", lambda *_, **__: True)
        _put(cuda, "get_device_capability", lambda *_: (9, 0))
        _put(cuda, "get_rng_state", lambda *_: torch.zeros(16, dtype=torch.uint8))
        for name in ("Stream", "ExternalStream"):
            _put(cuda, name, FakeStream)
        _put(cuda, "Event", FakeEvent)
        for name in ("current_stream", "default_stream"):
            _put(cuda, name, lambda *_: FakeStream())
        for name in ("stream", "StreamContext"):
            _put(cuda, name, _nothing)
        for name in ("range_push", "range_pop", "mark"):
            _put(cuda.nvtx, name, lambda *_, **__: None)
        _put(cuda.nvtx, "range", _nothing)
        _put(torch, "device", _DeviceOfNumbers)
        for holder in (random, _dispatch):  # else DTensor goes on to a GPU's generator
            _put(holder, "is_rng_supported_mesh", lambda mesh: False)
        _put(sys.modules["torch.cuda.amp.common"], "amp_definitely_not_available", self._autocast_here)

    def _used(self) -> bool:
        return self._pretend or _NOTE in self._notes

    def _set_device(self, device: Any) -> None:
        self._notes.setdefault(_NOTE)
        index = device if isinstance(device, int) else torch.device(device).index
        self._index = self._index if index is None else index

    def _autocast_here(self) -> bool:
        """`torch.autocast` asks whether CUDA is missing before it turns itself off."""
        self._autocast = self._autocast or FakeGpuAutocast()
        return False

    def _refuse(self, name: str) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> Any:
            raise NotRehearsableError(
                f"{name} asks for facts of a GPU that is not here; write the number the program needs, or "
                "take it from the command line"
            )

        return refuse

    # Is there one?

    def _questions(self) -> None:
        here = torch.device("cuda")
        for owner in (torch.cuda, torch.accelerator):
            _put(owner, "is_available", self._answer(owner.is_available, lambda: True))
            _put(owner, "device_count", self._answer(owner.device_count, lambda: self._count))
        default = torch._C._get_accelerator
        _put(torch._C, "_get_accelerator", lambda *_: here if self._used() else default(*_))
        known = torch.accelerator.current_accelerator
        _put(torch.accelerator, "current_accelerator", self._answer(known, lambda *_, **__: here))
        for name in ("set_device_index", "set_device_idx"):
            _put(torch.accelerator, name, self._set_device)
        for name in ("current_device_index", "current_device_idx"):
            _put(torch.accelerator, name, lambda: self._index)
        _put(torch.accelerator, "synchronize", lambda *_: None)

    def _answer(self, truth: Callable[..., Any], pretended: Callable[..., Any]) -> Callable[..., Any]:
        """To the program itself, and to torch's parallelisms and Accelerate's state once it uses a GPU. Other
        libraries hear the truth, for they would go on to real kernels."""

        def answer(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            file = frame.f_code.co_filename
            if self._used() and (file.startswith(_PARALLEL) or file.endswith(_ACCELERATE)):
                return pretended(*args, **kwargs)
            if not self._program.owns(file):
                return truth(*args, **kwargs)
            if self._pretend:
                return pretended(*args, **kwargs)
            self._asked = self._asked or (file, frame.f_lineno)
            return truth(*args, **kwargs)

        return answer


_plain_data: Any = torch.Tensor.data


def _set_data(tensor: FakeTensor, data: torch.Tensor) -> None:
    """`tensor.data = data`, after which the tensor is where the data is."""
    _plain_data.__set__(tensor, data)
    if isinstance(data, FakeTensor):
        tensor.fake_device = data.fake_device


def _caller(frame: types.FrameType | None) -> types.CodeType:
    """The code that called the operator which a dispatch mode's frame was entered for."""
    while frame is not None and frame.f_code.co_filename == _OPERATORS:
        frame = frame.f_back
    assert frame is not None
    return frame.f_code


def _under_vmap(frame: types.FrameType | None) -> bool:
    """Whether an operator was called below `torch.func.vmap`: its rules in C++ make tensors of their own."""
    while frame is not None and frame.f_code.co_filename != _VMAP:
        frame = frame.f_back
    return frame is not None


_RealDevice = torch.device


class _IsDevice(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _RealDevice)


class _DeviceOfNumbers(metaclass=_IsDevice):
    """`torch.device`, where a number alone is a GPU's: FSDP makes one of `torch.cuda.current_device()`."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and type(args[0]) is int:
            args = ("cuda", args[0])
        return _RealDevice(*args, **kwargs)


class FakeStream:
    """Orders nothing: a rehearsal does one thing after the other."""

    cuda_stream = 0
    device = torch.device("cuda")

    def __init__(self, *_: Any, **__: Any) -> None:
        return None

    def record_event(self, event: Any = None) -> FakeEvent:
        """What has happened until now has happened."""
        return event or FakeEvent()

    def query(self) -> bool:
        """Always idle."""
        return True

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in ("wait_stream", "wait_event", "synchronize"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *_: Any) -> None:
        return None


class FakeEvent:
    """A moment. Between any two of them lies a millisecond."""

    def __init__(self, *_: Any, **__: Any) -> None:
        return None

    def query(self) -> bool:
        """Always over."""
        return True

    def elapsed_time(self, other: FakeEvent) -> float:
        """In milliseconds."""
        return 1.0

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in ("record", "wait", "synchronize"):
            raise AttributeError(name)
        return lambda *_, **__: None


@contextlib.contextmanager
def _nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield


def _put(owner: Any, name: str, replacement: Any) -> None:
    """Replace what this version of torch has, and add what it has not."""
    if hasattr(owner, name):
        swap(owner, name, replacement)
    else:
        setattr(owner, name, replacement)
