import copy
import math

import pytest
import torch
from torch import nn

from workshop.precision.mixed import (
    LossScaler,
    MasterWeights,
    MixedTraining,
    count_gradients,
    sizes_by_power,
)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-15)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


@pytest.fixture
def loss_of():
    """A loss of the model on fixed data, in the model's own type, its mean in fp32."""
    torch.manual_seed(1)
    x, y = torch.randn(32, 8), torch.randn(32, 4)

    def loss(model):
        made = model(x.to(next(model.parameters()).dtype))
        return (made.float() - y).square().mean()

    return loss


def test_the_scaler_is_torchs(model):
    """A hundred steps, some of which overflow: the same scales, and the same weights, as GradScaler's."""
    ours, theirs = model, copy.deepcopy(model)
    by_hand, by_torch = (
        LossScaler(2.0**10, 4),
        torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4),
    )
    optimizers = [sgd(ours.parameters()), sgd(theirs.parameters())]
    generator = torch.Generator().manual_seed(0)
    skipped = 0
    for step in range(100):
        x = torch.randn(4, 8, generator=generator)
        x = x * (math.inf if step in (3, 4, 5, 50, 70) else 1)
        by_hand.scale(ours(x).square().mean()).backward()
        finite = by_hand.unscale([p.grad for p in ours.parameters()])
        skipped += not finite
        if finite:
            optimizers[0].step()
        by_hand.update(finite)
        by_torch.scale(theirs(x).square().mean()).backward()
        by_torch.step(optimizers[1])
        by_torch.update()
        assert by_hand.value == by_torch.get_scale()
        for optimizer in optimizers:
            optimizer.zero_grad()
    assert skipped == 5
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_doubles_after_good_steps_in_a_row_only():
    scaler = LossScaler(16, interval=3)
    seen = []
    for finite in (True, True, False, True, True, True, True, False, False):
        scaler.update(finite)
        seen.append(scaler.value)
    assert seen == [16, 16, 8, 8, 8, 16, 16, 8, 4]


def test_masters_keep_updates_that_16_bits_would_lose():
    weight = nn.Linear(1, 1, bias=False)
    nn.init.ones_(weight.weight)
    alone = copy.deepcopy(weight).bfloat16()
    masters = MasterWeights(weight, torch.bfloat16, lambda p: torch.optim.SGD(p, lr=1.0))
    plain = torch.optim.SGD(alone.parameters(), lr=1.0)
    for _ in range(100):
        for each in (weight, alone):
            each.weight.grad = torch.full_like(each.weight, 1e-3)
        masters.take_gradients()
        masters.step()
        plain.step()
    assert alone.weight.item() == 1
    assert masters.pairs[0][1].item() == pytest.approx(0.9, rel=3e-3)  # 1e-3 itself is rounded to bf16
    assert weight.weight.item() == pytest.approx(0.9, rel=5e-3)
    assert weight.weight.dtype == torch.bfloat16
    assert masters.take_gradients() == []


def test_tied_weights_stay_tied():
    both = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    both[1].weight = both[0].weight
    masters = MasterWeights(both, torch.bfloat16, sgd)
    assert len(masters.pairs) == 1
    assert both[0].weight is both[1].weight
    assert both[0].weight.dtype == torch.bfloat16


@pytest.mark.parametrize("recipe", ["fp16", "bf16", "amp-fp16", "amp-bf16"])
def test_every_recipe_follows_fp32(model, loss_of, recipe):
    reference = MixedTraining(copy.deepcopy(model), "fp32", adamw)
    scaler = (
        torch.amp.GradScaler("cpu") if recipe == "amp-fp16" else LossScaler() if recipe == "fp16" else None
    )
    training = MixedTraining(model, recipe, adamw, scaler)
    pairs = [(reference.step(loss_of), training.step(loss_of)) for _ in range(20)]
    assert pairs[-1][1].loss == pytest.approx(pairs[-1][0].loss, rel=0.02)
    assert pairs[-1][1].loss < 0.95 * pairs[0][1].loss
    assert {parameter.dtype for parameter in model.parameters()} == {
        torch.float32 if "amp" in recipe else training.dtype
    }


def test_fp16_loses_gradients_and_scaling_brings_them_back(model, loss_of):
    divide = 2**20
    lost = MixedTraining(copy.deepcopy(model), "fp16", adamw, divide_loss=divide).step(loss_of)
    kept = MixedTraining(copy.deepcopy(model), "fp16", adamw, LossScaler(2.0**20), divide).step(loss_of)
    bf16 = MixedTraining(copy.deepcopy(model), "bf16", adamw, divide_loss=divide).step(loss_of)
    assert lost.gradients.zero_share > 0.5
    assert kept.gradients.zero_share == bf16.gradients.zero_share == 0


@pytest.mark.parametrize("recipe", ["fp16", "amp-fp16"])
def test_too_large_a_scale_is_skipped_and_halved(model, loss_of, recipe):
    start = 2.0**40
    scaler = LossScaler(start) if recipe == "fp16" else torch.amp.GradScaler("cpu", init_scale=start)
    training = MixedTraining(model, recipe, adamw, scaler)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    made = training.step(loss_of)
    assert made.skipped
    assert made.scale == start
    assert made.gradients.not_finite > 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert training.step(loss_of).scale == start / 2


def test_counts():
    gradients = [torch.tensor([0.0, 1.0, math.inf]), torch.tensor([[math.nan, 0.75]])]
    found = count_gradients(gradients)
    assert (found.numbers, found.zeros, found.not_finite) == (5, 1, 2)
    assert found.zero_share == 0.2
    assert sizes_by_power([torch.tensor([0.0, 0.5, 0.75, -1.0, 3.9, 2.0**-20, 100.0])], -3, 3) == [
        0,
        0,
        2,
        1,
        1,
        0,
    ]


def test_refusals(model):
    with pytest.raises(ValueError, match="by hand go with LossScaler"):
        MixedTraining(model, "amp-fp16", sgd, LossScaler())
    with pytest.raises(ValueError, match="by hand go with LossScaler"):
        MixedTraining(model, "fp16", sgd, torch.amp.GradScaler("cpu"))
    with pytest.raises(ValueError, match="amp-bf16"):
        MixedTraining(model, "amp-bf15", sgd)
    with pytest.raises(ValueError, match="backoff 2"):
        LossScaler(backoff=2)
