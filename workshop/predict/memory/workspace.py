"""Memory that no tensor of the model accounts for: library workspaces, the driver's context, communicators.

Counted by PyTorch as allocated:

* cuBLAS takes one workspace for each handle and stream, and a handle belongs to a thread: one for the main
  thread,
  one for autograd's.  Its size is 8.125 MiB, or 32 MiB on Hopper
  (``aten/src/ATen/cuda/CublasHandlePool.cpp``), or what ``CUBLAS_WORKSPACE_CONFIG=:4096:8`` says, which
  deterministic runs must set: 8 pieces of 4 MiB.
* Transformer Engine has its own: 4 MiB, or 32 MiB from Hopper on
  (``transformer_engine/pytorch/module/base.py``).

Not counted by PyTorch, but seen by ``nvidia-smi``: the CUDA context with the kernels loaded so far, and
NCCL's buffers for each communicator.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from workshop.facts.device import ClusterSpec, DeviceSpec
from workshop.facts.implementation import Implementation
from workshop.predict.cuts import Array, Cuts

MIB = 2**20
HOPPER = ("H100", "H200", "H800", "GH200")
BLACKWELL = ("B200", "B300", "GB200", "GB300")
CONTEXT_BYTES = int(0.47 * 2**30)
"""CUDA context with lazily loaded kernels, torch 2.1: github stas00/ml-engineering
training/performance/README.md."""
EAGER_CONTEXT_BYTES = int(1.78 * 2**30)
"""The same with all kernels loaded, torch 1.10 (same source)."""
NCCL_FIRST_BYTES = int(1.45 * 2**30)
"""The first communicator of two GPUs: 2.0 GiB after a barrier, 0.55 GiB before it (same source)."""


def is_family(device: DeviceSpec, names: tuple[str, ...]) -> bool:
    """Whether a device's name starts with one of the names."""
    return device.name.upper().startswith(names)


def workspace_bytes(device: DeviceSpec, how: Implementation) -> int:
    """Workspaces that PyTorch counts as allocated."""
    hopper, blackwell = is_family(device, HOPPER), is_family(device, BLACKWELL)
    cublas = 32 * MIB if how.fixed_workspace or hopper else int(8.125 * MIB)
    engine = (32 if hopper or blackwell else 4) * MIB if how.transformer_engine else 0
    return 2 * cublas + engine


class Place(NamedTuple):
    """Where a rank runs: library workspaces, the bytes it may use (0: not known), and whether it is a GPU.

    A CPU has no context, no communicator's buffers and no caching allocator.
    """

    workspace: int = 0
    capacity: int = 0
    is_gpu: bool = True


def place_of(cluster: ClusterSpec, how: Implementation, world_size: int) -> Place:
    """The place of a rank of a cluster."""
    is_gpu = cluster.device.name != "cpu"
    workspace = workspace_bytes(cluster.device, how) if is_gpu else 0
    return Place(workspace, cluster.memory_per_rank(world_size), is_gpu)


def outside_bytes(cuts: Cuts, how: Implementation) -> Array:
    """Context and communicators: what the device holds beside PyTorch's reserved memory."""
    alone = (cuts.tensor * cuts.context * cuts.shard * cuts.replicate * cuts.pipeline) == 1
    context = EAGER_CONTEXT_BYTES if how.eager_context else CONTEXT_BYTES
    return context + np.where(alone, 0, NCCL_FIRST_BYTES)
