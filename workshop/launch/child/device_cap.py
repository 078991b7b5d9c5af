"""`--device-memory 256MiB`: a rank that may hold no more than that, on a GPU and on a CPU alike.

On a GPU the caching allocator has the cap built in (a fraction of the device). On a CPU nobody
caps a tensor, so we watch: torch's own CPU allocator keeps a count of live bytes once its flag
``FLAGS_caffe2_report_cpu_memory_usage`` is set. We read the count after every operator (a
`TorchDispatchMode`; 0.15 microseconds a read) and raise `torch.OutOfMemoryError`, as a GPU would,
when it has passed the cap. The count includes what C++ allocates on the side, DDP's gradient
buckets for one. It does not see what an operator allocates and frees within itself.

The counter's address is not public: `LiveBytes` takes the symbol that libc10 exports and finds the
field in it by its behaviour (three allocations of known size), not by an assumed layout. Where that
fails, the cap counts the storages that operators return, and says so.
"""

from __future__ import annotations

import ctypes
import weakref
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from workshop.facts.units import format_bytes

_SYMBOL = "_ZN3c1025profiledCPUMemoryReporterEv"


class LiveBytes:
    """Live bytes of torch's CPU allocator in this process, exact, from the moment it is created."""

    def __init__(self) -> None:
        c10 = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libc10.so"))
        reporter = getattr(c10, _SYMBOL)
        reporter.restype = ctypes.c_void_p
        ctypes.c_bool.in_dll(c10, "FLAGS_caffe2_report_cpu_memory_usage").value = True
        self._cell = self._find(reporter())

    @staticmethod
    def _find(base: int) -> ctypes.c_size_t:
        offsets = list(range(0, 256, 8))
        for size in (1_234_568, 7_654_320, 4_194_368):
            before = {o: ctypes.c_size_t.from_address(base + o).value for o in offsets}
            block = torch.empty(size, dtype=torch.uint8)
            offsets = [o for o in offsets if ctypes.c_size_t.from_address(base + o).value - before[o] == size]
            del block
        if len(offsets) != 1:
            raise OSError(f"torch {torch.__version__} keeps its CPU byte count elsewhere: {offsets}")
        return ctypes.c_size_t.from_address(base + offsets[0])

    def __call__(self) -> int:
        """Bytes now."""
        return self._cell.value


class SeenStorages:
    """The plain way: bytes of every storage an operator returned, until it is freed."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def see(self, result: Any) -> None:
        """Note the storages of an operator's result."""
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in self._bytes:
                    weakref.finalize(storage, self._bytes.pop, key, None)
                self._bytes[key] = storage.nbytes()

    def __call__(self) -> int:
        """Bytes now."""
        return sum(self._bytes.values())


class CpuMemoryCap(TorchDispatchMode):
    """Raise `torch.OutOfMemoryError` after the operator with which this rank went over ``cap`` bytes."""

    def __init__(self, cap: int):
        super().__init__()
        self.cap = cap
        self.seen: SeenStorages | None = None
        try:
            self.live: Any = LiveBytes()
        except (OSError, AttributeError, ValueError):  # another platform or another torch
            self.live = self.seen = SeenStorages()
        self.base = self.live()

    def held(self) -> int:
        """Bytes of tensors this rank holds now."""
        return self.live() - self.base

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.held()
        result = func(*args, **(kwargs or {}))
        if self.seen is not None:
            self.seen.see(result)
        held = self.held()
        if held > self.cap and held > before:
            del result
            raise torch.OutOfMemoryError(self.message(held - before, before, func))
        return result

    def message(self, requested: int, held: int, func: Any) -> str:
        """In the words of CUDA's own message, with the three numbers that matter."""
        return (
            f"CPU out of memory (--device-memory). Tried to allocate {format_bytes(requested)} in {func}. "
            f"This rank has a total capacity of {format_bytes(self.cap)} "
            f"of which {format_bytes(max(self.cap - held, 0))} is free; "
            f"{format_bytes(held)} is held by its tensors."
        )


def cap_device_memory(cap: int, device: str) -> CpuMemoryCap | None:
    """Put the cap on this process; on a CPU it holds for the thread that calls (and autograd's on it)."""
    if device == "cuda":
        index = torch.cuda.current_device()
        total = torch.cuda.get_device_properties(index).total_memory
        if cap < total:
            torch.cuda.set_per_process_memory_fraction(cap / total, index)
        return None
    mode = CpuMemoryCap(cap)
    mode.__enter__()
    return mode
