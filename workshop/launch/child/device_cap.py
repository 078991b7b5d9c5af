"""`--device-memory 256MiB`: a rank that may hold no more than that, on a GPU and on a CPU alike.

On a GPU the caching allocator has the cap built in (a fraction of the device). On a CPU nobody
caps a tensor, so we watch: torch's own CPU allocator keeps a count of live bytes once its flag
``FLAGS_caffe2_report_cpu_memory_usage`` is set. We read the count after every operator (a
`TorchDispatchMode`; 0.15 microseconds a read) and raise `torch.OutOfMemoryError`, as a GPU would,
when it has passed the cap. The count includes what C++ allocates on the side, DDP's gradient
buckets for one. It does not see what an operator allocates and frees within itself.

Where the counter cannot be had (see `live_bytes`), the cap counts the storages that operators return.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from workshop.facts.units import format_bytes
from workshop.process import live_bytes


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
        self.live: Any = live_bytes.live_bytes
        try:
            live_bytes.enable()
        except live_bytes.CounterUnavailable:
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
