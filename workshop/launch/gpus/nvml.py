"""The NVIDIA driver's own view of this node's GPUs, through NVML (nvidia-ml-py).

NVML is a library of the driver, so it is there where the driver is, and it answers without touching a GPU:
no CUDA context, no memory. Its numbers are the node's, in the order of the PCI bus; ``CUDA_VISIBLE_DEVICES``
does not change them. A GPU's UUID is its name for good: it stays when others are hidden or taken out, and
CUDA takes it in ``CUDA_VISIBLE_DEVICES``. Source: NVIDIA, *NVML API Reference Guide*.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


class NoDriverError(RuntimeError):
    """NVML cannot be asked; the message says why, in a form that can follow a colon."""


@dataclass(frozen=True)
class Gpu:
    """One GPU: its number on the PCI bus, its UUID, its name, and processes that compute on it now."""

    index: int
    uuid: str
    name: str
    processes: tuple[int, ...] = ()


@contextmanager
def driver() -> Iterator[Any]:
    """The module ``pynvml``, initialised, and shut down at the end; `NoDriverError` where it cannot be."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        raise NoDriverError("nvidia-ml-py is not installed (pip install nvidia-ml-py)") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        raise NoDriverError("no NVIDIA driver on this machine (NVML's library is not found)") from None
    except nvml.NVMLError as error:
        raise NoDriverError(f"the NVIDIA driver does not answer ({error})") from None
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def text(value: str | bytes) -> str:
    """A name as text: nvidia-ml-py before version 12 gives bytes."""
    return value.decode() if isinstance(value, bytes) else value


def node_gpus() -> list[Gpu]:
    """Every GPU of this node; none where NVML cannot be asked."""
    try:
        with driver() as nvml:
            return [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except NoDriverError:
        return []


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        processes = tuple(int(p.pid) for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except nvml.NVMLError:  # not told on some devices and in some containers: then none are known
        processes = ()
    return Gpu(index, text(nvml.nvmlDeviceGetUUID(handle)), text(nvml.nvmlDeviceGetName(handle)), processes)
