"""Ring attention and Ulysses on real gloo ranks: one process's output and gradients, the bytes, the balance."""

from pathlib import Path

import pytest

from workshop import launch
from workshop.parallel.context import pairs_computed, positions_of

PROGRAM = Path(__file__).parent / "programs" / "context_equal.py"
WAYS = [
    f"{way} causal={causal} kv_heads={kv_heads}"
    for way in ("ring contiguous", "ring zigzag", "ulysses contiguous")
    for causal in (True, False)
    for kv_heads in (4, 2, 1)
]
PART = 2 * 32 * 8 * 4  # batch * positions * head_dim * four bytes: one head of the whole sequence


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request):
    return launch.torchrun(launch.Script(PROGRAM), request.param, limits=launch.Limits(timeout=90))


@pytest.mark.parametrize("way", WAYS)
def test_output_and_gradients_are_those_of_one_process(ranks, way):
    for rank in range(len(ranks)):
        assert max(ranks[rank][way]["errors"]) < 1e-5, (rank, ranks[rank][way]["errors"])


def test_scores_exist_in_tiles_that_need_not_divide(ranks):
    for rank in range(len(ranks)):
        assert all(max(errors) < 1e-5 for errors in ranks[rank].tiled), (rank, ranks[rank].tiled)


@pytest.mark.parametrize("kv_heads", [4, 1])
def test_the_ring_sends_what_its_docstring_says(ranks, kv_heads):
    n = len(ranks)
    kv_bytes = 2 * kv_heads * PART // n
    sent = ranks[0][f"ring zigzag causal=True kv_heads={kv_heads}"]["wire"]["send"]
    assert sent == 3 * (n - 1) * kv_bytes


def test_ulysses_sends_what_its_docstring_says(ranks):
    n = len(ranks)
    held = (4 + 4 + 4 + 4) * PART // n  # q, k, v and the output
    assert ranks[0]["ulysses contiguous causal=True kv_heads=4"]["wire"] == {
        "all_to_all": 2 * held * (n - 1) // n
    }


def test_half_precision_keeps_its_type(ranks):
    dtype, error = ranks[0].half
    assert dtype == "torch.bfloat16"
    assert error < 0.01


def test_a_group_inside_the_world():
    ranks = launch.torchrun(launch.Script(PROGRAM), 4, limits=launch.Limits(timeout=90))
    assert max(ranks[rank].pair for rank in range(4)) < 1e-5


def test_ulysses_says_what_it_cannot_cut(ranks):
    assert (
        ranks[0].said == f"1 query heads do not divide by {len(ranks)} ranks: Ulysses cuts heads. Use a ring."
    )


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_the_ranks_share_all_positions(order):
    held = [positions_of(rank, 4, 64, order).tolist() for rank in range(4)]
    assert sorted(place for part in held for place in part) == list(range(64))
    assert {len(part) for part in held} == {16}


def test_zigzag_gives_all_the_same_work_in_every_step():
    zigzag = [pairs_computed(rank, 4, "zigzag") for rank in range(4)]
    plain = [pairs_computed(rank, 4, "contiguous") for rank in range(4)]
    assert [set(column[1:]) for column in [zigzag[0]]] == [{2}]
    assert len({tuple(steps) for steps in zigzag}) == 1
    assert [sum(steps) for steps in plain] == [3, 7, 11, 15]
    assert sum(map(sum, zigzag)) == sum(map(sum, plain))


def test_wrong_orders_and_lengths_are_told():
    with pytest.raises(ValueError, match=r"order 'spiral' is not known; there are contiguous, zigzag"):
        positions_of(0, 2, 8, "spiral")
    with pytest.raises(ValueError, match=r"a sequence of 30 does not divide into 8 parts .* 24 or 32 would"):
        positions_of(0, 4, 30)
