"""The caching allocator's rule: rounding, pools, splitting, fragmentation; its fast form, and a whole history."""

import random

import numpy as np
import pytest

from workshop.facts.implementation import implementation
from workshop.predict.memory.allocator import (
    FRAGMENTATION,
    MIB,
    CachingAllocator,
    IndexedAllocator,
    replay,
    reserved_bytes,
)


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


@pytest.mark.parametrize("seed", range(20))
def test_the_fast_form_does_what_the_plain_one_does(seed):
    dice, plain, fast, live = random.Random(seed), CachingAllocator(), IndexedAllocator(), []
    for _ in range(400):
        if live and dice.random() < 0.45:
            ticket = live.pop(dice.randrange(len(live)))
            plain.free(ticket)
            fast.free(ticket)
        else:
            size = int(2 ** dice.uniform(0, 26))
            live.append(plain.malloc(size))
            assert fast.malloc(size) == live[-1]
        assert (fast.allocated, fast.reserved) == (plain.allocated, plain.reserved)
        assert fast._live == plain._live, "the very same pieces"
    assert {small: sorted(free) for small, free in plain._free.items()} == fast._free
    assert plain.reserved > plain.allocated


def test_a_history_is_replayed_storage_by_storage():
    played = replay([(0, 30 * MIB), (1, 11 * MIB), (0, -30 * MIB), (2, 12 * MIB), (1, -3 * MIB)])
    assert played.peak_reserved == played.reserved == (30 + 12) * MIB
    assert played.allocated == (12 + 8) * MIB, "one that shrinks is allocated anew, here in the 30"
    assert played.peak_allocated == 42 * MIB, "the end of a segment of 12 is too short to be cut off"
    assert replay([]).reserved == 0
