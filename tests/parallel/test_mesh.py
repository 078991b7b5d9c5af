"""Cuts combined on 4 and 8 real gloo ranks: one process's loss and gradients; and where axes lie."""

from pathlib import Path

import pytest

from workshop import launch
from workshop.facts.layout import Layout
from workshop.parallel.mesh import nodes_touched

PROGRAM = Path(__file__).parent / "programs" / "mesh_equal.py"


@pytest.fixture(scope="module")
def four():
    return launch.torchrun(launch.Script(PROGRAM), 4, limits=launch.Limits(timeout=120))


def check(ranks, case):
    names = set()
    for rank in range(len(ranks)):
        found = ranks[rank][case]
        assert found["loss"] < 1e-5
        assert {name: error for name, error in found["errors"].items() if not error < 1e-5} == {}
        names |= found["errors"].keys()
    assert len(names) == 4 * 9 + 3


@pytest.mark.parametrize("case", ["fsdp_tp", "fsdp_sp", "hybrid", "pp_fsdp", "pp_tp"])
def test_two_axes_are_one_process(four, case):
    check(four, case)


def test_three_axes_on_eight_ranks_are_one_process():
    check(launch.torchrun(launch.Script(PROGRAM), 8, limits=launch.Limits(timeout=180)), "three")


def test_a_mesh_for_another_number_of_ranks_is_refused(four):
    assert four[0].said == "the layout is for 6 ranks, and there are 4: tensor 2, shard 3"


def test_which_axis_stays_within_a_node():
    """Eight GPUs a node: tensor 8 inside, the other two beyond."""
    touched = nodes_touched(Layout(pipeline=4, shard=2, zero=1, tensor=8), 8)
    assert touched == {"tensor": 1, "context": 1, "shard": 2, "replicate": 1, "pipeline": 4}
    assert nodes_touched(Layout(tensor=16), 8)["tensor"] == 2
    with pytest.raises(ValueError, match="ranks_per_node is 0"):
        nodes_touched(Layout(), 0)
