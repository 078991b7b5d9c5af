"""Blocks: who holds which, what is found by name, and where a token is written."""

from __future__ import annotations

import random

import pytest

from workshop.serve.blocks import Blocks, OutOfBlocks, names, slot_for


def test_a_block_is_free_when_all_who_hold_it_gave_it_back() -> None:
    blocks = Blocks(2, 4)
    first = blocks.take()
    assert blocks.share(first) == first
    blocks.give_back(first)
    assert blocks.num_free == 1
    blocks.give_back(first)
    assert blocks.num_free == 2
    with pytest.raises(ValueError, match="nobody holds it"):
        blocks.give_back(first)


def test_no_block_is_handed_out_twice() -> None:
    blocks = Blocks(3, 4)
    assert {blocks.take() for _ in range(3)} == {0, 1, 2}
    with pytest.raises(OutOfBlocks, match="all 3 blocks of 4"):
        blocks.take()


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (-1, 4)])
def test_a_cache_without_room_is_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError):
        Blocks(*sizes)


def test_a_name_stands_for_all_tokens_up_to_the_blocks_end() -> None:
    assert len(names([1, 2, 3, 4, 5], 2)) == 2
    assert names([1, 2, 3, 4], 2)[0] == names([1, 2, 9, 9], 2)[0]
    assert names([1, 2, 3, 4], 2)[1] != names([0, 2, 3, 4], 2)[1], "equal tokens behind different ones"


def test_what_was_free_for_longest_is_forgotten_first() -> None:
    blocks = Blocks(2, 1)
    for name in (b"old", b"new"):
        blocks.publish(block := blocks.take(), name)
        blocks.give_back(block)
    taken = blocks.take()
    assert blocks.known(b"old") is None
    assert blocks.known(b"new") != taken
    assert blocks.num_free == 0, "a block that is found is held"


def test_a_shared_block_is_copied_before_it_is_written() -> None:
    copies: list[tuple[int, int]] = []
    blocks = Blocks(6, 4, lambda source, target: copies.append((source, target)))
    first: list[int] = []
    assert [slot_for(place, first, blocks) for place in range(6)] == [0, 1, 2, 3, 4, 5]
    second = [blocks.share(block) for block in first]
    slot = slot_for(6, second, blocks)
    assert copies == [(first[1], second[1])]
    assert slot == second[1] * 4 + 2
    assert second[0] == first[0]
    slot_for(6, first, blocks)
    assert len(copies) == 1


def test_random_users_leave_nothing_behind() -> None:
    chance = random.Random(0)
    blocks, tables = Blocks(64, 4), [list[int]() for _ in range(4)]
    lengths = [0] * 4
    for _ in range(2_000):
        who = chance.randrange(4)
        if chance.random() < 0.05:
            for block in tables[who]:
                blocks.give_back(block)
            other = chance.randrange(4)
            tables[who] = [] if other == who else [blocks.share(block) for block in tables[other]]
            lengths[who] = 0 if other == who else lengths[other]
        elif lengths[who] < 60:
            slot_for(lengths[who], tables[who], blocks)
            lengths[who] += 1
        held = [block for table in tables for block in table]
        assert blocks.holders == [held.count(block) for block in range(64)]
        assert blocks.num_free == 64 - len(set(held))
