"""How many bytes do tensors hold on the CPU, right now? Ask the allocator.

The resident size of a process does not say: malloc keeps freed pages, libraries have heaps of their own, and
the answer can be off by half. torch's CPU allocator keeps an exact counter of live tensor bytes, for all
threads, C++ buffers included; it is used by the profiler and switched off otherwise. There is no Python
function for it, but the library exports both the switch and the counter, so `ctypes` can reach them: 0.15
microseconds a reading.

Where in the C++ object the number sits is found by its behaviour, not by an assumed layout: allocate three
tensors of odd sizes and see which word grew by just that.

The counter ignores the frees of tensors that are older than the switch. Switch it on right after `import
torch`.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

_PROBES = (1_234_568, 7_654_320, 4_194_368)
_WORDS = 32


class CounterUnavailableError(RuntimeError):
    """This build of torch does not export its allocator's counter."""


def enable() -> None:
    """Switch the counter on; tensors made from now on are counted. Calling it again changes nothing.

    Raises:
        CounterUnavailableError: the library has no such counter, or not where we know to look.
    """
    _switch().value = True
    _counter()


def live_bytes() -> int:
    """Bytes held by all CPU tensors of this process that were made since `enable()`."""
    return _counter().value


@functools.cache
def _library() -> ctypes.CDLL:
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libc10.so", "libc10.dylib"):
        if (folder / name).exists():
            return ctypes.CDLL(str(folder / name))
    raise CounterUnavailableError(
        f"found neither libc10.so nor libc10.dylib in {folder}: exact CPU memory needs one"
    )


@functools.cache
def _switch() -> ctypes.c_bool:
    try:
        return ctypes.c_bool.in_dll(_library(), "FLAGS_caffe2_report_cpu_memory_usage")
    except ValueError as error:
        raise CounterUnavailableError(
            f"torch {torch.__version__} does not export its memory switch: {error}"
        ) from error


@functools.cache
def _counter() -> ctypes.c_size_t:
    """The 8-byte word, inside the allocator's reporter, that holds the live bytes."""
    try:
        reporter = _library()["_ZN3c1025profiledCPUMemoryReporterEv"]  # c10::profiledCPUMemoryReporter()
    except AttributeError as error:
        raise CounterUnavailableError(
            f"torch {torch.__version__} does not export its memory reporter: {error}"
        ) from error
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
        raise CounterUnavailableError(
            f"{len(words)} words of torch {torch.__version__}'s memory reporter behave like "
            "a counter; expected one"
        )
    return words[0]
