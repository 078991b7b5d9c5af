"""Which modules are units, and which cannot be."""

import pytest
import torch
from torch import nn

from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.materialise import held_by, materialise, not_trained
from workshop.parallel.wrapping import layers, units


def gpt(tied):
    return GPT(
        GPTConfig(
            vocab_size=8,
            hidden_size=8,
            num_layers=3,
            num_heads=2,
            num_kv_heads=1,
            intermediate_size=8,
            tied=tied,
        )
    )


def test_layers_are_found_and_the_model_comes_last():
    model = gpt(tied=False)
    assert units(model) == [*model.model.layers, model]
    assert layers(
        nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    )  # what has no weights is no layer
    assert units(model, "root") == [model]


@pytest.mark.parametrize(("tied", "number"), [(False, 3 * 7 + 1), (True, 3 * 7)])
def test_a_tied_head_is_no_unit(tied, number):
    assert len(units(gpt(tied), "every-linear")) == number + 1


def test_inner_units_come_before_outer_ones():
    model = gpt(tied=False)
    found = units(model, lambda m: type(m).__name__ in ("MLP", "Layer"))
    kinds = [type(module).__name__ for module in found]
    assert kinds == ["MLP", "Layer"] * 3 + ["GPT"]


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        ("layer", "layers"),
        (lambda m: False, "said yes to no module"),
        (lambda m: isinstance(m, nn.ModuleList), "wrap what is called"),
        (lambda m: isinstance(m, nn.Embedding), "shares a weight with a module outside it"),
    ],
)
def test_what_it_says(wrap, words):
    with pytest.raises(ValueError, match=words):
        units(gpt(tied=True), wrap)


def test_a_model_without_layers_says_what_to_do():
    with pytest.raises(ValueError, match="wrap=lambda module"):
        units(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))


def test_parameters_are_held_once_with_all_their_places():
    model = gpt(tied=True)
    *inner, _ = modules = units(model)
    counted = [one for i, module in enumerate(modules) for one in held_by(module, outside=modules[:i])]
    assert sum(one.parameter.numel() for one in counted) == sum(p.numel() for p in model.parameters())
    root = held_by(model, outside=inner)
    assert [len(one.places) for one in root] == [2, 1]  # embedding and head; the norm


def test_materialise_keeps_ties_and_needs_first_values():
    with torch.device("meta"):
        model = gpt(tied=True)
    with pytest.raises(ValueError, match="RMSNorm .*initialise="):
        materialise(held_by(model))
    with torch.device("meta"):
        model = gpt(tied=True)

    def initialise(module):
        for parameter in module.parameters(recurse=False):
            parameter.fill_(3)

    materialise(held_by(model), initialise)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert {float(p.detach().mean()) for p in model.parameters()} == {3.0}


def test_frozen_parameters_on_meta_are_refused():
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="weight is not trained and lies on the meta device"):
        not_trained(model)
