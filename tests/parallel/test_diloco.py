"""DiLoCo: the paper's algorithm in one process, data parallelism as its limit, and the bytes of each step."""

from pathlib import Path

import pytest
import torch

from workshop import launch
from workshop.parallel.diloco import DiLoCo, deal

RANKS, SIZE = 2, 12 * 16 + 16 + 16 * 6 + 6


@pytest.fixture(scope="module")
def found():
    program = launch.Script(Path(__file__).parent / "programs" / "islands.py")
    return launch.torchrun(program, RANKS, limits=launch.Limits(timeout=60))


def test_the_algorithm_of_the_paper_over_20_steps(found):
    for rank in range(RANKS):
        losses, weights, between_ranks, _ = found[rank].twin
        assert losses < 1e-5
        assert weights < 1e-5
        assert between_ranks == 0  # the 20th step is a meeting


def test_bytes_travel_in_every_fifth_step_only(found):
    meeting = 2 * (RANKS - 1) / RANKS * 4 * SIZE
    assert found[0].twin[3] == [0, 0, 0, 0, meeting] * 4


def test_with_one_inner_step_of_sgd_it_is_data_parallelism(found):
    assert found[1].ddp < 1e-6


def test_streaming_sends_a_fragment_at_a_time(found):
    sent, apart = found[0].streaming
    fragments = [12 * 16, 16, 16 * 6, 6]
    assert sent == [0, *[bytes_ for size in fragments for bytes_ in (4 * size, 0)]]
    assert all(difference > 0 for difference in apart)  # the ninth step is nobody's meeting


def test_resumed(found):
    assert found[0].resumed == 0


def test_refused():
    weight = torch.nn.Parameter(torch.zeros(3))
    inner = torch.optim.SGD([weight], lr=1.0)
    with pytest.raises(ValueError, match="fragments = 3 do not divide inner_steps = 10"):
        DiLoCo(inner, 10, fragments=3)
    with pytest.raises(ValueError, match="inner_steps must be a whole number"):
        DiLoCo(inner, 0)
    with pytest.raises(ValueError, match="1 parameters cannot be dealt into 2 fragments"):
        DiLoCo(inner, 10, fragments=2)


def test_deal():
    assert deal(list("abcde"), 2) == [["a", "c", "e"], ["b", "d"]]
