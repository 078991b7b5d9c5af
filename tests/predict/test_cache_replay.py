"""Shares of a cache that hold tokens, held to figure 2 of the vLLM paper and to what must be true of any trace."""

from __future__ import annotations

import random

import pytest

from workshop.predict.cache_replay import Buddies, Lengths, drawn_lengths, replay, replay_blocks

PUBLISHED = {"max": 20.4, "pow2": 26.8, "oracle": 38.2}  # Kwon et al. 2023, arXiv 2309.06180, figure 2
POLICIES = {
    "max": lambda one, most: most,
    "pow2": lambda one, most: min(most, one.prompt + (1 << (one.output - 1).bit_length())),
    "oracle": lambda one, most: one.prompt + one.output,
}


@pytest.mark.parametrize("seed", range(3))
def test_the_papers_four_systems(seed: int) -> None:
    trace = drawn_lengths(500, 161.31, 337.99, 2_048, seed)
    for name, reserve in POLICIES.items():
        found = replay(trace, 15_700, reserve, 2_048)
        assert 100 * found.tokens == pytest.approx(PUBLISHED[name], abs=5)
        parts = (found.tokens, found.reserved_for_later, found.never_used, found.elsewhere)
        assert sum(parts) == pytest.approx(1)
        assert min(parts) >= 0
    assert replay(trace, 15_700, POLICIES["max"], 2_048).requests == pytest.approx(7.0, abs=0.01)  # figure 13
    pages = replay_blocks(trace, 15_700, 16)
    assert 100 * pages.tokens == pytest.approx(96.3, abs=3)
    assert pages.tokens + pages.never_used + pages.elsewhere == pytest.approx(1)


def test_pieces_do_not_overlap_and_are_joined_again() -> None:
    chance, room, held = random.Random(0), Buddies(300), list[tuple[int, int]]()
    for _ in range(2_000):
        if held and chance.random() < 0.5:
            room.give_back(held.pop(chance.randrange(len(held))))
        elif piece := room.take(chance.randrange(1, 70)):
            held.append(piece)
        places = [place for begin, size in held for place in range(begin, begin + size)]
        assert len(places) == len(set(places))
        assert all(0 <= place < 300 for place in places)
    for piece in held:
        room.give_back(piece)
    assert {size: len(begins) for size, begins in room.free.items() if begins} == {256: 1, 32: 1, 8: 1, 4: 1}


def test_what_never_fits_or_ends_too_soon_is_said() -> None:
    long = [Lengths(100, 100)]
    with pytest.raises(ValueError, match="never fits into 64 slots"):
        replay(long, 64, POLICIES["oracle"], 200)
    with pytest.raises(ValueError, match="never fits into 4 blocks of 16"):
        replay_blocks(long, 64, 16)
    with pytest.raises(ValueError, match="before anything was counted"):
        replay(long, 256, POLICIES["oracle"], 200)


def test_lengths_stay_below_the_longest() -> None:
    drawn = drawn_lengths(400, 500, 900, 1_024, seed=1)
    assert all(one.prompt >= 1 and one.output >= 1 and one.prompt + one.output <= 1_024 for one in drawn)
