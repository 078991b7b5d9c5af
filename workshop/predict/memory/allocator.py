"""PyTorch's caching allocator: why more is reserved than allocated.

The allocator never gives a piece of memory smaller than it must take from the driver: requests are rounded to
512 bytes; those up to 1 MiB are cut from segments of 2 MiB, those below 10 MiB from segments of 20 MiB,
larger ones get a segment of their own, rounded to 2 MiB (``c10/cuda/CUDACachingAllocator.cpp``).  A freed
piece returns to its segment; a later request that is larger than every free piece needs a new segment
although enough memory lies idle in pieces.  That idle memory is fragmentation.

:class:`CachingAllocator` is that rule as a program; :func:`replay` runs it on a history, as a rehearsal does.
:func:`reserved_bytes` is the estimate for when only the peak is known: long-lived tensors pack well, those of
one step leave a share idle.

**Library workspaces, the driver's context, communicators** are memory that no tensor of the model
accounts for. Counted by PyTorch as allocated:

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

from bisect import bisect_left, insort
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

from workshop.facts.device import ClusterSpec, DeviceSpec
from workshop.facts.implementation import Implementation
from workshop.predict.calibrated import own_section
from workshop.predict.layouts import Array, Layouts

MIB = 2**20
FRAGMENTATION = 0.18
"""Idle bytes as a share of those that come and go within a step.

Fitted on the fitting half of the rows that report reserved or device memory (torchtitan, nanotron, InternEvo,
BLOOM): the mean error there is flat between 0.16 and 0.20, for eager and for compiled runs alike.
"""


@cache
def idle_share() -> float:
    """`FRAGMENTATION`, or what `workshop calibrate` found for your runs."""
    return float(own_section("memory").get("idle_share", FRAGMENTATION))


def reserved_bytes(allocated: Array, steady: Array, how: Implementation) -> Array:
    """Reserved bytes for a peak of ``allocated`` bytes of which ``steady`` stay from step to step."""
    share = 0.0 if how.expandable_segments else idle_share()
    return allocated + share * np.maximum(0, allocated - steady)


Piece = tuple[int, int, int]  # size, segment, offset


class CachingAllocator:
    """The rule of PyTorch's allocator on one stream: ``malloc`` returns a ticket for ``free``.

    Counts ``allocated``, ``reserved`` and their peaks in bytes.  Best fit: the smallest free piece that holds
    the request; it is cut when the rest is worth keeping (512 bytes in small segments, more than 1 MiB in
    large ones).
    """

    def __init__(self) -> None:
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self._free: dict[bool, list[Piece]] = {True: [], False: []}
        self._live: dict[int, tuple[int, int, int, bool]] = {}
        self._segments = self._tickets = 0

    @staticmethod
    def rounded(size: int) -> int:
        """A request rounded to 512 bytes."""
        return max(512, -(-size // 512) * 512)

    @staticmethod
    def segment_size(size: int) -> int:
        """What is taken from the driver for a rounded request."""
        if size <= MIB:
            return 2 * MIB
        return 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB

    def malloc(self, size: int) -> int:
        """Allocate ``size`` bytes."""
        size = self.rounded(size)
        small = size <= MIB
        piece = self._best(size, small)
        if piece:
            self._take(piece, small)
        else:
            piece = (self.segment_size(size), self._segments, 0)
            self._segments += 1
            self.reserved += piece[0]
            self.peak_reserved = max(self.peak_reserved, self.reserved)
        length, segment, offset = piece
        if length - size >= (512 if small else MIB + 1):
            self._keep((length - size, segment, offset + size), small)
            length = size
        self._tickets += 1
        self._live[self._tickets] = (length, segment, offset, small)
        self.allocated += length
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return self._tickets

    def free(self, ticket: int) -> None:
        """Return a piece; it joins free neighbours of its segment."""
        length, segment, offset, small = self._live.pop(ticket)
        self.allocated -= length
        for piece in self._beside((length, segment, offset), small):
            self._take(piece, small)
            offset, length = min(offset, piece[2]), length + piece[0]
        self._keep((length, segment, offset), small)

    def _best(self, size: int, small: bool) -> Piece | None:
        return min((piece for piece in self._free[small] if piece[0] >= size), default=None)

    def _beside(self, piece: Piece, small: bool) -> list[Piece]:
        length, segment, offset = piece
        same = [other for other in self._free[small] if other[1] == segment]
        return [other for other in same if other[2] + other[0] == offset or offset + length == other[2]]

    def _take(self, piece: Piece, small: bool) -> None:
        self._free[small].remove(piece)

    def _keep(self, piece: Piece, small: bool) -> None:
        self._free[small].append(piece)


class IndexedAllocator(CachingAllocator):
    """The same rule for long lists: free pieces are kept by size, and found by where they begin or end."""

    def __init__(self) -> None:
        super().__init__()
        self._begin: dict[tuple[bool, int, int], Piece] = {}
        self._end: dict[tuple[bool, int, int], Piece] = {}

    def _best(self, size: int, small: bool) -> Piece | None:
        free = self._free[small]
        place = bisect_left(free, (size, -1, -1))
        return free[place] if place < len(free) else None

    def _beside(self, piece: Piece, small: bool) -> list[Piece]:
        length, segment, offset = piece
        before = self._end.get((small, segment, offset))
        after = self._begin.get((small, segment, offset + length))
        return [other for other in (before, after) if other]

    def _take(self, piece: Piece, small: bool) -> None:
        free, (length, segment, offset) = self._free[small], piece
        del free[bisect_left(free, piece)]
        del self._begin[small, segment, offset], self._end[small, segment, offset + length]

    def _keep(self, piece: Piece, small: bool) -> None:
        length, segment, offset = piece
        insort(self._free[small], piece)
        self._begin[small, segment, offset] = self._end[small, segment, offset + length] = piece


def replay(changes: Iterable[tuple[int, int]], allocator: CachingAllocator | None = None) -> CachingAllocator:
    """The allocator after a history: the number of a storage, and by how many bytes it grew or shrank.

    A storage that changes its size is freed and allocated anew. New segments get higher and higher addresses.
    A driver may give others, and of free pieces of one size the first by address is taken: where many are of
    one size, that decides (one of thirty shapes, 5 %: tests/rehearse/test_reserved.py).

    allocator: whose rule; the fast one by default.
    """
    allocator = allocator or IndexedAllocator()
    tickets: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for storage, change in changes:
        size = sizes.pop(storage, 0) + change
        if storage in tickets:
            allocator.free(tickets.pop(storage))
        if size:
            tickets[storage], sizes[storage] = allocator.malloc(size), size
    return allocator


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


class RankHardware(NamedTuple):
    """What a rank runs on: library workspaces, the bytes it may use (0: not known), and whether it is a GPU.

    A CPU has no context, no communicator's buffers and no caching allocator.
    """

    workspace: int = 0
    capacity: int = 0
    is_gpu: bool = True


def rank_hardware(cluster: ClusterSpec, how: Implementation, world_size: int) -> RankHardware:
    """The hardware of a rank of a cluster."""
    is_gpu = cluster.device.name != "cpu"
    workspace = workspace_bytes(cluster.device, how) if is_gpu else 0
    return RankHardware(workspace, cluster.memory_per_rank(world_size), is_gpu)


def outside_bytes(layouts: Layouts, how: Implementation) -> Array:
    """Context and communicators: what the device holds beside PyTorch's reserved memory."""
    alone = (layouts.tensor * layouts.context * layouts.shard * layouts.replicate * layouts.pipeline) == 1
    context = EAGER_CONTEXT_BYTES if how.eager_context else CONTEXT_BYTES
    return context + np.where(alone, 0, NCCL_FIRST_BYTES)
