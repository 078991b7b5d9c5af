"""DTensor plans on real gloo ranks: one process's loss and gradients, for our model and for transformers'."""

from pathlib import Path

import pytest

from workshop import launch

PROGRAM = Path(__file__).parent / "programs" / "plans_equal.py"


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, loaded_engine):
    return launch.torchrun(launch.Script(PROGRAM), request.param, limits=launch.Limits(timeout=120))


@pytest.mark.parametrize("model", ["gpt", "llama"])
@pytest.mark.parametrize("sequence", [False, True])
def test_the_loss_and_every_gradient_are_those_of_one_process(ranks, model, sequence):
    for rank in range(len(ranks)):
        found = ranks[rank][f"{model} sequence={sequence}"]
        assert found["loss"] < 1e-5
        assert {name: error for name, error in found["errors"].items() if not error < 1e-5} == {}
        assert len(found["errors"]) == 2 * 9 + 3


def test_a_rank_holds_its_part_and_the_norms(ranks):
    norms = 5 * 64
    whole = 2 * 96 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96)
    assert ranks[0]["gpt sequence=False"]["held"] == norms + whole // len(ranks)


def test_what_cannot_be_cut_is_told(ranks):
    assert "give one of them, for example mesh['tensor']" in ranks[0].axes
    assert ranks[0].heads.startswith("1 key and value heads cannot be dealt out to")
