import pytest
import torch
from torch import nn

from workshop.precision import fp8_libraries
from workshop.precision.fp8 import Fp8Linear, Recipe
from workshop.precision.fp8_libraries import (
    LIBRARIES,
    Unavailable,
    prepare_fp8,
    transformer_engine_recipe,
    why_not,
)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(16, 16) for _ in range(3)])


def test_by_hand_runs_everywhere(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made, same, inside = prepare_fp8(model, optimizer)
    assert made is model
    assert same is optimizer
    assert [type(layer) is Fp8Linear for layer in made] == [False, True, False]
    with inside():
        loss = made(torch.randn(16, 16)).square().mean()
    loss.backward()
    optimizer.step()
    assert why_not("by-hand") == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("through", [name for name in LIBRARIES if name != "by-hand"])
def test_without_a_gpu_a_sentence_says_so(model, through):
    with pytest.raises(
        Unavailable, match="needs a GPU with 8-bit units, and there is none here: take 'by-hand'"
    ):
        prepare_fp8(model, torch.optim.SGD(model.parameters()), through)
    assert all(type(layer) is nn.Linear for layer in model)


def test_an_old_gpu_and_a_placeholder_are_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert "this GPU has 8.0" in why_not("transformer-engine")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(fp8_libraries, "version", lambda _: "0.0.0")
    assert "empty placeholder" in why_not("transformer-engine")
    monkeypatch.setattr(fp8_libraries, "version", lambda _: "2.9.0")
    assert why_not("accelerate-te") == ""


def test_an_absent_package_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))

    def absent(name):
        raise fp8_libraries.PackageNotFoundError(name)

    monkeypatch.setattr(fp8_libraries, "version", absent)
    assert "transformer_engine is not installed" in why_not("accelerate-te")
    assert "torchao is not installed" in why_not("accelerate-ao")


def test_what_nobody_has_is_refused():
    with pytest.raises(ValueError, match="no scaling by 'row'"):
        transformer_engine_recipe(Recipe("row"))
    with pytest.raises(ValueError, match="accelerate-ao"):
        why_not("accelerate-ai")
