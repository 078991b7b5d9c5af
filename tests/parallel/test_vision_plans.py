"""ViT and CoAtNet on real gloo ranks: tensor plan, FSDP, DDP, batch norm, pipeline; each beside one process."""

from pathlib import Path

import pytest

from workshop import launch

PROGRAM = Path(__file__).parent / "programs" / "vision_equal.py"
CASES = [f"{way} {model}" for way in ("tensor", "pipeline", "ddp", "fsdp") for model in ("vit", "coatnet")]


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request):
    return launch.torchrun(launch.Script(PROGRAM), request.param, limits=launch.Limits(timeout=100))


@pytest.mark.parametrize("case", [*CASES, "ddp shared", "fsdp shared"])
def test_the_loss_and_every_gradient_are_those_of_one_process(ranks, case):
    """Without shared statistics, of one process that takes the batch in as many parts as there are ranks."""
    names = set()
    for rank in range(len(ranks)):
        found = ranks[rank][case]
        assert found["loss"] < 1e-5
        assert {name: error for name, error in found["errors"].items() if not error < 1e-5} == {}
        names |= found["errors"].keys()
    vit = 4 + 3 * 16 + 4
    coatnet = (2 + 2) + (14 + 16 + 14) + (19 + 17 + 19) + 6
    assert len(names) == (vit if case.endswith("vit") else coatnet)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_shared_statistics_are_the_whole_batchs_in_evaluation_too(ranks, how):
    assert all(ranks[rank][f"{how} shared"]["running"] < 1e-6 for rank in range(len(ranks)))


def test_a_tensor_parallel_rank_holds_its_part_of_layers_and_all_else(ranks):
    n = len(ranks)
    layer = 32 * 32 * 12 + 3 * 32 + 4 * 32  # matrices, biases of q, k, v and fc1: these are cut
    found = ranks[0]["tensor vit"]
    assert found["held"] == found["count"] - 3 * layer + 3 * layer // n
    found = ranks[0]["tensor coatnet"]
    assert found["count"] / n < found["held"] < found["count"]


def test_what_cannot_be_cut_is_told(ranks):
    assert ranks[0].heads.startswith("3 heads cannot be dealt out to")
    assert "pieces [0, 1, 3, 4], and vit has 0 to 4" in ranks[0].cuts
    assert ranks[0].piece == "coatnet: piece 7 hands nothing to another; 0 to 6 do"
    assert ranks[0].no_norm == "ViT has no BatchNorm2d: its ranks need not share statistics"
