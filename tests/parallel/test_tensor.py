"""Tensor and sequence parallelism by hand on real gloo ranks: one process's numbers, and the papers' counts."""

from pathlib import Path

import pytest

from workshop import launch

PROGRAMS = Path(__file__).parent / "programs"
LAYERS = 2


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request):
    return launch.torchrun(
        launch.Script(PROGRAMS / "tensor_equal.py"), request.param, limits=launch.Limits(timeout=90)
    )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("sequence", [False, True])
def test_the_loss_and_every_gradient_are_those_of_one_process(ranks, tied, sequence):
    for rank in range(len(ranks)):
        found = ranks[rank][f"tied={tied} sequence={sequence}"]
        assert found["loss"] < 1e-5
        assert found["logits"] < 1e-5
        assert {name: error for name, error in found["gradients"].items() if not error < 1e-5} == {}
        assert len(found["gradients"]) == 9 * LAYERS + (2 if tied else 3)


@pytest.mark.parametrize("tied", [False, True])
def test_a_layer_all_reduces_twice_forward_and_twice_backward(ranks, tied):
    """Shoeybi et al. 2019, figure 4. Embedding and head: one each; the loss: largest logit, and two sums at once."""
    assert ranks[0][f"tied={tied} sequence=False"]["calls"] == {"all_reduce": 4 * LAYERS + 2 + 2}


@pytest.mark.parametrize("tied", [False, True])
def test_under_sequence_parallelism_four_gathers_and_four_scatters(ranks, tied):
    """Korthikanti et al. 2022, section 4.2.2. all_reduce is left for the loss and the norms' gradients."""
    assert ranks[0][f"tied={tied} sequence=True"]["calls"] == {
        "all_gather": 4 * LAYERS + 2,
        "reduce_scatter": 4 * LAYERS + 2,
        "all_reduce": 2 + 2 * LAYERS + 1,
    }


def test_a_rank_holds_its_part_and_the_norms(ranks):
    width, norms = 64, (2 * LAYERS + 1) * 64
    layer = 2 * width * width + 2 * width * width // 2 + 3 * width * 96
    assert ranks[0]["tied=False sequence=False"]["params"] == norms + (
        2 * 96 * width + LAYERS * layer
    ) // len(ranks)


def test_what_does_not_divide_is_told(ranks):
    n = len(ranks)
    assert ranks[0].heads == f"1 key and value heads cannot be dealt out to {n} ranks as whole heads"
    assert ranks[0].words.startswith(f"97 output features do not divide by {n} ranks; 96 or ")
    assert ranks[0].positions.startswith(f"15 positions do not divide by {n} ranks; ")
