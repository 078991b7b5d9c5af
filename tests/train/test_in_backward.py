"""Stepping inside backward gives the weights of stepping after it, and leaves no gradient behind."""

import pytest
import torch
from torch import nn

from workshop.models.gpt import GPT, GPTConfig
from workshop.train.in_backward import InBackward
from workshop.train.optimizers import build_optimizers

CONFIG = GPTConfig(
    vocab_size=64, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=48, tied=True
)


def trained(name, inside):
    torch.manual_seed(0)
    model = GPT(CONFIG)
    tokens = torch.randint(64, (3, 2, 12))
    if inside:
        optimizer = InBackward(model, name, 1e-2, weight_decay=0.1)
    else:
        optimizers = build_optimizers(name, model, 1e-2, weight_decay=0.1)
    for number, batch in enumerate(tokens):
        rate = 1e-2 / (number + 1)
        if inside:
            optimizer.set_learning_rate(rate)
            model(batch, batch).backward()
            assert all(parameter.grad is None for parameter in model.parameters())
            continue
        for each in optimizers:
            for group in each.param_groups:
                group["lr"] = rate
        model(batch, batch).backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("name", ["adamw", "lion", "sgd-momentum", "adafactor"])
def test_the_weights_are_those_of_a_step_after_backward(name):
    after, inside = trained(name, False), trained(name, True)
    for key, value in after.items():
        torch.testing.assert_close(inside[key], value, rtol=1e-4, atol=1e-6)


def test_hooks_can_be_taken_away():
    model = nn.Linear(4, 4)
    optimizer = InBackward(model, "sgd", 0.1)
    optimizer.remove()
    before = model.weight.detach().clone()
    model(torch.ones(1, 4)).sum().backward()
    assert torch.equal(model.weight, before)
    assert model.weight.grad is not None


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="no trainable parameter"):
        InBackward(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(ValueError, match="two optimizers"):
        InBackward(nn.Linear(2, 2), "muon")
