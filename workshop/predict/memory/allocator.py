"""PyTorch's caching allocator: why more is reserved than allocated.

The allocator never gives a piece of memory smaller than it must take from the driver: requests are rounded to
512 bytes; those up to 1 MiB are cut from segments of 2 MiB, those below 10 MiB from segments of 20 MiB,
larger ones get a segment of their own, rounded to 2 MiB (``c10/cuda/CUDACachingAllocator.cpp``).  A freed
piece returns to its segment; a later request that is larger than every free piece needs a new segment
although enough memory lies idle in pieces.  That idle memory is fragmentation.

:class:`CachingAllocator` is that rule as a program, to be run on a list of allocations.
:func:`reserved_bytes` is the estimate for when only the peak is known: long-lived tensors pack well, those of
one step leave a share idle.
"""

from __future__ import annotations

import numpy as np

from workshop.facts.implementation import Implementation
from workshop.predict.cuts import Array

MIB = 2**20
FRAGMENTATION = 0.18
"""Idle bytes as a share of those that come and go within a step.

Fitted on the fitting half of the rows that report reserved or device memory (torchtitan, nanotron, InternEvo,
BLOOM): the mean error there is flat between 0.16 and 0.20, for eager and for compiled runs alike.
"""


def reserved_bytes(allocated: Array, steady: Array, how: Implementation) -> Array:
    """Reserved bytes for a peak of ``allocated`` bytes of which ``steady`` stay from step to step."""
    share = 0.0 if how.expandable_segments else FRAGMENTATION
    return allocated + share * np.maximum(0, allocated - steady)


class CachingAllocator:
    """The rule of PyTorch's allocator on one stream: ``malloc`` returns a ticket for ``free``.

    Counts ``allocated``, ``reserved`` and their peaks in bytes.  Best fit: the smallest free piece that holds
    the request; it is cut when the rest is worth keeping (512 bytes in small segments, more than 1 MiB in
    large ones).
    """

    def __init__(self) -> None:
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self._free: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}  # size, segment, offset
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
        fitting = [piece for piece in self._free[small] if piece[0] >= size]
        if fitting:
            piece = min(fitting)
            self._free[small].remove(piece)
        else:
            piece = (self.segment_size(size), self._segments, 0)
            self._segments += 1
            self.reserved += piece[0]
            self.peak_reserved = max(self.peak_reserved, self.reserved)
        length, segment, offset = piece
        if length - size >= (512 if small else MIB + 1):
            self._free[small].append((length - size, segment, offset + size))
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
        free = self._free[small]
        for piece in [p for p in free if p[1] == segment]:
            if piece[2] + piece[0] == offset or offset + length == piece[2]:
                free.remove(piece)
                offset, length = min(offset, piece[2]), length + piece[0]
        free.append((length, segment, offset))
