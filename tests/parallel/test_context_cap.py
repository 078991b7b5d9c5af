"""A sequence that one rank's cap cannot hold, under the ring and under Ulysses: equal to a larger device."""

from pathlib import Path

import pytest

from workshop import launch

PROGRAM = Path(__file__).parent / "programs" / "context_under_cap.py"
TENSOR = 4 * 8192 * 4 * 32  # q, k, v, the output, its gradient and theirs are eight of these
CAP = 28 * 2**20


def attend(way, ranks, saved, cap=CAP):
    limits = launch.Limits(timeout=120, device_memory=cap)
    return launch.torchrun(launch.Script(PROGRAM, [way, str(saved)]), ranks, limits=limits)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    place = tmp_path_factory.mktemp("large") / "attention.pt"
    attend("large", 1, place, cap=None)
    return place


def test_the_eight_tensors_are_more_than_one_rank_may_hold(saved):
    assert 5 * TENSOR < CAP < 8 * TENSOR
    with pytest.raises(launch.RankFailed, match=r"OutOfMemoryError.*flash_attention_for_cpu_backward"):
        attend("small", 1, saved)


@pytest.mark.parametrize("way", ["ring", "ulysses"])
def test_four_ranks_under_the_same_cap_give_the_same(saved, way):
    ranks = attend(way, 4, saved)
    assert max(ranks[rank].error for rank in range(4)) < 1e-5
