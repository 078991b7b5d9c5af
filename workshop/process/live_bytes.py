"""How many bytes do tensors hold on the CPU, right now? Ask the allocator.

The resident size of a process does not say: malloc keeps freed pages, libraries have heaps of their
own. torch's CPU allocator keeps an exact counter of live tensor bytes, C++ buffers included; it
serves the profiler and is switched off otherwise. No Python function reads it, but the library
exports both the switch and the object that holds the counter, so `ctypes` reaches them: 0.15
microseconds a reading.

Where in the C++ object the number sits is found by its behaviour, not by an assumed layout: allocate
three tensors of odd sizes and see which word grew by just that.

The counter ignores the frees of tensors that are older than the switch: switch it on right after
`import torch`. This module imports no torch itself; it works on the one that the process has loaded.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from typing import Any

_PROBES = (1_234_568, 7_654_320, 4_194_368)
_WORDS = 32


class CounterUnavailable(RuntimeError):
    """The build of torch in this process does not export its allocator's counter."""


def enable() -> None:
    """Switch the counter on; tensors made from now on are counted. Calling it again changes nothing.

    Raises `CounterUnavailable` where the library has no such counter, or not where we know to look.
    """
    _switch().value = True
    _counter()


def live_bytes() -> int:
    """Bytes held by all CPU tensors of this process that were made since `enable()`."""
    return _counter().value


def _torch() -> Any:
    if "torch" not in sys.modules:
        raise CounterUnavailable("this process has not imported torch: import torch first")
    return sys.modules["torch"]


@functools.cache
def _library() -> ctypes.CDLL:
    folder = Path(_torch().__file__).parent / "lib"
    for name in ("libc10.so", "libc10.dylib"):
        if (folder / name).exists():
            return ctypes.CDLL(str(folder / name))
    raise CounterUnavailable(f"found neither libc10.so nor libc10.dylib in {folder}")


@functools.cache
def _switch() -> ctypes.c_bool:
    try:
        return ctypes.c_bool.in_dll(_library(), "FLAGS_caffe2_report_cpu_memory_usage")
    except ValueError as error:
        raise CounterUnavailable(f"torch {_torch().__version__} has no memory switch: {error}") from error


@functools.cache
def _counter() -> ctypes.c_size_t:
    """The 8-byte word, inside the allocator's reporter, that holds the live bytes."""
    torch = _torch()
    try:
        reporter = _library()["_ZN3c1025profiledCPUMemoryReporterEv"]  # c10::profiledCPUMemoryReporter()
    except AttributeError as error:
        raise CounterUnavailable(f"torch {torch.__version__} has no memory reporter: {error}") from error
    reporter.restype = ctypes.c_void_p
    start = reporter()
    _switch().value = True
    words = [ctypes.c_size_t.from_address(start + 8 * i) for i in range(_WORDS)]
    for size in _PROBES:
        before = [word.value for word in words]
        probe = torch.empty(size, dtype=torch.uint8, device="cpu")
        words = [word for word, old in zip(words, before, strict=True) if word.value - old == size]
        del probe
    if len(words) != 1:
        raise CounterUnavailable(
            f"{len(words)} words of torch {torch.__version__}'s memory reporter count bytes; expected one"
        )
    return words[0]
