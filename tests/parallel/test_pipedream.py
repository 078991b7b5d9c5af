"""PipeDream on virtual ranks: whose gradient comes out, with stashed weights and without."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from workshop.parallel.pipedream import PipeDream

STAGES, MICRO = 4, 12


def loss(y, target):
    return (y - target).square().mean()


@pytest.fixture(scope="module")
def runs():
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(STAGES)]
    inputs, targets = torch.randn(MICRO, 8, 6), torch.randn(MICRO, 8, 6)
    made = {}
    for mode in ("none", "stashing", "vertical-sync"):
        dream = PipeDream(stages, loss, mode, learning_rate=0.3)
        made[mode] = dream, dream.train(list(inputs), list(targets))
    return made, inputs, targets


def true_gradients(dream, trace, micro, x, target):
    """Autograd through all stages at once, each with the version that its forward used."""
    weights = [
        {n: w.clone().requires_grad_() for n, w in stage.versions[trace.forward_version[s][micro]].items()}
        for s, stage in enumerate(dream.stages)
    ]
    for stage, own in zip(dream.stages, weights, strict=True):
        x = functional_call(stage.module, own, (x,))
    flat = [w for own in weights for w in own.values()]
    return torch.autograd.grad(loss(x, target), flat)


def worst(runs, mode):
    made, inputs, targets = runs
    dream, trace = made[mode]
    errors = []
    for micro in range(MICRO):
        wanted = true_gradients(dream, trace, micro, inputs[micro], targets[micro])
        found = [g for stage in range(STAGES) for g in trace.gradients[stage][micro].values()]
        errors += [((a - b).norm() / b.norm()).item() for a, b in zip(found, wanted, strict=True)]
    return max(errors)


def test_with_stashed_weights_backward_is_the_gradient_of_the_forward(runs):
    assert worst(runs, "stashing") < 1e-5
    assert worst(runs, "vertical-sync") < 1e-5


def test_without_them_it_is_not(runs):
    assert worst(runs, "none") > 0.05


def test_a_stage_is_as_many_updates_behind_as_stages_follow(runs):
    trace = runs[0]["stashing"][1]
    steady = range(STAGES, MICRO)
    for stage in range(STAGES):
        assert {micro - trace.forward_version[stage][micro] for micro in steady} == {STAGES - 1 - stage}
    assert trace.backward_version == trace.forward_version


def test_vertical_sync_gives_every_stage_the_first_ones_version(runs):
    trace = runs[0]["vertical-sync"][1]
    assert all(versions == trace.forward_version[0] for versions in trace.forward_version)


def test_how_many_versions_are_kept(runs):
    """Stashing: one for each micro-batch under way; vertical sync costs the late stages as many as the first."""
    assert runs[0]["stashing"][1].most_versions == [4, 3, 2, 1]
    late = runs[0]["vertical-sync"][1].most_versions
    assert late[-1] > 1
    assert late[0] == 4


def test_one_stage_is_plain_sgd():
    torch.manual_seed(1)
    stage, x, y = nn.Linear(3, 3), torch.randn(5, 2, 3), torch.randn(5, 2, 3)
    dream = PipeDream([stage], loss, "none", learning_rate=0.1)
    trace = dream.train(list(x), list(y))
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    for micro in range(5):
        optimizer.zero_grad()
        wanted = loss(stage(x[micro]), y[micro])
        wanted.backward()
        assert trace.losses[micro] == pytest.approx(wanted.item(), rel=1e-6)
        optimizer.step()
    torch.testing.assert_close(dream.stages[0].versions[-1]["weight"], stage.weight.detach())


def test_an_unknown_mode_is_told():
    with pytest.raises(
        ValueError, match="mode 'async' is not known; there are none, stashing, vertical-sync"
    ):
        PipeDream([], loss, "async")
