"""What each optimizer keeps is what it says, what the predictor counts, and what its paper writes."""

import sys

import pytest
import torch

from workshop.facts.precision import MOMENTS
from workshop.models.gpt import GPT, GPTConfig
from workshop.train.optimizers import STATE, Lion, build_optimizers, optimizer_class
from workshop.train.settings import FLAT

CONFIG = GPTConfig(
    vocab_size=256, hidden_size=128, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=256
)


def trained_a_little(name):
    """The model and its optimizers, after three steps that lowered the loss."""
    torch.manual_seed(0)
    model = GPT(CONFIG)
    optimizers = build_optimizers(name, model, 1e-3, weight_decay=0.1)
    tokens = torch.randint(0, 256, (2, 16))
    losses = []
    for _ in range(3):
        loss = model(tokens, tokens)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    return model, optimizers


def state_bytes(optimizers):
    values = [v for o in optimizers for state in o.state.values() for v in state.values()]
    return sum(held_bytes(v) for v in values if isinstance(v, torch.Tensor) and v.numel() > 1)


def held_bytes(tensor):
    """8-bit states are two tensors in one: codes and the scales of their blocks."""
    return tensor.codes.nbytes + tensor.scale.nbytes if hasattr(tensor, "codes") else tensor.nbytes


@pytest.mark.parametrize("name", [name for name in STATE if name not in ("adafactor", "muon", "adamw-8bit")])
def test_state_bytes_are_those_stated(name):
    model, optimizers = trained_a_little(name)
    num_params = sum(p.numel() for p in model.parameters())
    assert state_bytes(optimizers) == STATE[name].bytes_per_parameter() * num_params


def test_adafactor_keeps_rows_and_columns():
    model, optimizers = trained_a_little("adafactor")
    sums = sum(p.shape[0] + p.shape[1] if p.ndim == 2 else p.numel() for p in model.parameters())
    assert state_bytes(optimizers) == 4 * sums


def test_muon_keeps_one_moment_of_inner_matrices_and_two_of_the_rest():
    model, optimizers = trained_a_little("muon")
    inner = sum(p.numel() for name, p in model.named_parameters() if "layers" in name and p.ndim == 2)
    rest = sum(p.numel() for p in model.parameters()) - inner
    assert state_bytes(optimizers) == 4 * inner + 8 * rest
    assert [type(optimizer).__name__ for optimizer in optimizers] == ["Muon", "AdamW"]


def test_eight_bits_are_two_bytes_and_a_scale_for_each_block():
    pytest.importorskip("torchao")
    with torch.compiler.set_stance(
        "force_eager"
    ):  # torchao compiles its step: half a minute of a C++ compiler
        model, optimizers = trained_a_little("adamw-8bit")
    num_params = sum(p.numel() for p in model.parameters())
    assert 2 < state_bytes(optimizers) / num_params < 2.1


def test_the_predictor_counts_the_same_moments():
    shared = STATE.keys() & MOMENTS.keys()
    assert shared == STATE.keys() - {"adafactor"} == MOMENTS.keys() - {"none"}
    assert {name: STATE[name].moments for name in shared} == {name: MOMENTS[name] for name in shared}


def test_lion_is_algorithm_2_of_its_paper():
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    optimizer = Lion([weight], lr=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    x, momentum = weight.detach().clone(), torch.zeros(3)
    for gradient in (torch.tensor([1.0, -1.0, 0.5]), torch.tensor([-20.0, 0.1, 0.0])):
        weight.grad = gradient.clone()
        optimizer.step()
        update = torch.sign(0.9 * momentum + 0.1 * gradient)
        x = x - 0.1 * (update + 0.5 * x)
        momentum = 0.99 * momentum + 0.01 * gradient
    torch.testing.assert_close(weight.detach(), x)
    torch.testing.assert_close(optimizer.state[weight]["momentum"], momentum)


def test_only_matrices_decay():
    for optimizer in build_optimizers("adamw", GPT(CONFIG), 1e-3, weight_decay=0.1):
        decay = {p.ndim: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
        assert decay == {1: 0.0, 2: 0.1}


def test_what_is_not_known_or_not_there_is_said(monkeypatch):
    with pytest.raises(ValueError, match=r"unknown optimizer 'adamww'; did you mean 'adamw'\?"):
        build_optimizers("adamww", GPT(CONFIG), 1e-3)
    with pytest.raises(ValueError, match="muon is two optimizers"):
        optimizer_class("muon")
    frozen = GPT(CONFIG).requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameter"):
        build_optimizers("adamw", frozen, 1e-3)
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(
        ImportError, match="'adamw-8bit' comes from torchao, which is not installed: pip install torchao"
    ):
        build_optimizers("adamw-8bit", GPT(CONFIG), 1e-3)
    assert set(FLAT) < set(STATE)
