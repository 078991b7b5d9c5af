"""Torch's pipeline schedules on real gloo ranks: one process's losses and gradients."""

from pathlib import Path

import pytest

from workshop import launch
from workshop.parallel.pipeline_torch import SCHEDULES

PROGRAM = Path(__file__).parent / "programs" / "pipeline_torch_equal.py"


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request):
    return launch.torchrun(launch.Script(PROGRAM), request.param, limits=launch.Limits(timeout=120))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_losses_and_every_gradient_are_those_of_one_process(ranks, schedule):
    n, names = len(ranks), set()
    for rank in range(n):
        found = ranks[rank][schedule]
        assert found["losses"] < 1e-5
        assert {name: error for name, error in found["errors"].items() if not error < 1e-5} == {}
        names |= found["errors"].keys()
    assert sum(ranks[rank][schedule]["count"] for rank in range(n)) == 2 * n
    assert len(names) == 2 * n * 9 + 3


def test_what_is_wrong_is_told(ranks):
    assert ranks[0].name.startswith("schedule 'zigzag' is not one of torch's: gpipe, 1f1b, interleaved")
    assert ranks[0].number == "zbv has two stages on each rank, not 3"
    assert ranks[0].place == "gpipe: rank 0 has stages [1], and should have [0]"
