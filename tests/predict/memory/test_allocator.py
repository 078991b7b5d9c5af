"""The caching allocator's rule: rounding, pools, splitting, fragmentation."""

import numpy as np
import pytest

from workshop.facts.implementation import implementation
from workshop.predict.memory.allocator import FRAGMENTATION, MIB, CachingAllocator, reserved_bytes


def test_requests_are_rounded_to_512_bytes():
    allocator = CachingAllocator()
    allocator.malloc(1)
    assert (allocator.allocated, allocator.reserved) == (512, 2 * MIB)


@pytest.mark.parametrize(
    ("size", "segment"), [(MIB, 2), (MIB + 1, 20), (9 * MIB, 20), (10 * MIB, 10), (11 * MIB, 12)]
)
def test_segments_come_in_pools(size, segment):
    allocator = CachingAllocator()
    allocator.malloc(size)
    assert allocator.reserved == segment * MIB


def test_small_requests_share_a_segment():
    allocator = CachingAllocator()
    for _ in range(4):
        allocator.malloc(512 * 1024)
    assert allocator.reserved == 2 * MIB


def test_a_freed_piece_is_used_again():
    allocator = CachingAllocator()
    ticket = allocator.malloc(30 * MIB)
    allocator.free(ticket)
    allocator.malloc(28 * MIB)
    assert allocator.reserved == 30 * MIB


def test_neighbours_join_when_freed():
    allocator = CachingAllocator()
    first, second = allocator.malloc(8 * MIB), allocator.malloc(8 * MIB)
    allocator.free(first)
    allocator.free(second)
    allocator.malloc(9 * MIB)
    assert allocator.reserved == 20 * MIB


def test_fragmentation_is_memory_that_fits_nothing():
    allocator = CachingAllocator()
    tickets = [allocator.malloc(30 * MIB) for _ in range(4)]
    for ticket in tickets:
        allocator.free(ticket)
    allocator.malloc(40 * MIB)
    assert allocator.allocated == 40 * MIB
    assert allocator.reserved == 160 * MIB
    assert allocator.peak_allocated == 120 * MIB
    assert allocator.peak_reserved == 160 * MIB


def test_only_what_comes_and_goes_is_fragmented():
    how = implementation("torch")
    assert reserved_bytes(np.array(100.0), np.array(100.0), how) == 100
    assert reserved_bytes(np.array(200.0), np.array(100.0), how) == 200 + FRAGMENTATION * 100
    packed = implementation("torch", expandable_segments=True)
    assert reserved_bytes(np.array(200.0), np.array(100.0), packed) == 200
