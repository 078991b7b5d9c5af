"""VisionTrainer on two real gloo ranks: every way is one process's training."""

from pathlib import Path

import pytest

from workshop import launch

PROGRAM = Path(__file__).parent / "programs" / "vision_ways.py"
WAYS = [
    "data parallel",
    "data parallel x 2",
    "ZeRO-1 x 2",
    "ZeRO-2 x 2",
    "ZeRO-3 x 2",
    "tensor 2",
    "pipeline 2 x 4, 1f1b",
    "pipeline 2 x 2, gpipe",
]


@pytest.fixture(scope="module")
def ranks():
    return launch.torchrun(launch.Script(PROGRAM), 2, limits=launch.Limits(timeout=90))


@pytest.mark.parametrize("way", WAYS)
def test_losses_and_answers_are_those_of_one_process(ranks, way):
    for rank in range(2):
        assert ranks[rank][way]["losses"] < 1e-5
        assert ranks[rank][way]["answers"] < 1e-4  # after three steps of Adam, which divides small numbers


def test_stages_of_a_pipeline_share_no_statistics(ranks):
    assert [ranks[rank].shared for rank in range(2)] == [0, 0]


def test_a_layout_for_other_ranks_is_refused(ranks):
    assert ranks[0].said == "data parallel is for 4 ranks and there are 2"
