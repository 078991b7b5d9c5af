"""Expert parallelism on real gloo ranks: one process's loss and gradients, and who had how much to do."""

from pathlib import Path

import pytest

from workshop import launch
from workshop.rehearse import rehearse

PROGRAM = Path(__file__).parent / "programs" / "expert_equal.py"
CHOICES = 2 * 16 * 2  # of a rank in one layer: batch * positions * top_k


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request):
    return launch.torchrun(launch.Script(PROGRAM), request.param, limits=launch.Limits(timeout=90))


@pytest.mark.parametrize("case", ["even", "balanced", "one", "capacity"])
def test_the_loss_and_every_gradient_are_those_of_one_process(ranks, case):
    for rank in range(len(ranks)):
        found = ranks[rank][case]
        assert found["loss"] < 1e-5
        assert {name: error for name, error in found["errors"].items() if not error < 1e-5} == {}


def test_every_choice_arrives_somewhere(ranks):
    for layer in range(2):
        assert sum(ranks[rank].even["loads"][layer] for rank in range(len(ranks))) == CHOICES * len(ranks)
        taken = sum(ranks[rank].capacity["kept"][layer] for rank in range(len(ranks)))
        assert sum(ranks[rank].capacity["loads"][layer] for rank in range(len(ranks))) == taken
        assert taken < CHOICES * len(ranks)


def test_two_layers_trade_four_times_each_and_announce_once(ranks):
    count, payload = ranks[0].even["sent"]["all_to_all"]
    assert count == 2 * (1 + 2 + 2)
    assert payload > 0


def expert_step(top_k=2):
    """One layer of 64 experts on 32 ranks, one step; to be rehearsed."""
    import torch
    import torch.distributed as dist

    from workshop.models.moe import MoE, MoEConfig
    from workshop.parallel.expert import cut_experts

    dist.init_process_group()
    model = cut_experts(torch.nn.Sequential(MoE(MoEConfig(32, 24, num_experts=64, top_k=top_k))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(1, 128, 32, requires_grad=True)).sum().backward()
    optimizer.step()


def test_rehearsed_on_ranks_that_are_not_there_it_sends_the_closed_form():
    played = rehearse(expert_step, 32, rank=3, steps=1)
    row = next(row for row in played.traffic if row.name == "all_to_all")
    choices = 128 * 2
    assert (row.count, row.payload_bytes) == (5, 8 * 64 + 4 * choices * 32 * 4)


def test_what_cannot_be_dealt_out_is_told(ranks):
    assert ranks[0].uneven == f"7 experts cannot be dealt out evenly to {len(ranks)} ranks"
    assert "the model has no mixture of experts" in ranks[0].none
