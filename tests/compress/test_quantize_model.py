"""Whole models: which maps are swapped, what calibration sees, bytes, perplexity, the libraries' calls."""

import copy
import math

import pytest
import torch

from workshop.compress.quantize import Grid
from workshop.compress.quantize_library import (
    bitsandbytes_bytes_per_weight,
    bitsandbytes_layers,
    int4_product,
    modelopt_layers,
    torch_dynamic_linear,
    torchao_layers,
)
from workshop.compress.quantize_model import (
    bytes_per_weight,
    calibrate_layers,
    layer_linears,
    packed_layers,
    perplexity,
    round_layers,
    with_awq,
    with_gptq,
)
from workshop.models.gpt import GPT, GPTConfig

GRID = Grid(2, 16)


@pytest.fixture(scope="module")
def trained():
    """A small model that has learned one text by heart, so that damage shows; and that text."""
    torch.manual_seed(0)
    config = GPTConfig(32, 64, 2, 4, 2, 96)
    model, tokens = GPT(config), torch.randint(32, (8, 24))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(60):
        loss = model(tokens, torch.roll(tokens, -1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), tokens


def test_perplexity_of_one_who_knows_nothing(trained):
    model, tokens = trained
    blank = copy.deepcopy(model)
    for parameter in blank.parameters():
        parameter.data.zero_()
    assert perplexity(blank, [tokens]) == pytest.approx(32)
    assert perplexity(model, [tokens]) < 8
    assert math.isclose(perplexity(model, list(tokens.split(2))), perplexity(model, [tokens]), rel_tol=1e-4)


@pytest.mark.parametrize("num_layers", [None, 1])
def test_all_linear_maps_of_the_layers_and_no_others(trained, num_layers):
    model = copy.deepcopy(trained[0])
    names = set(layer_linears(model, num_layers))
    round_layers(model, GRID, num_layers)
    assert len(names) == len(list(packed_layers(model))) == 7 * (num_layers or 2)
    assert isinstance(model.lm_head, torch.nn.Linear)
    assert bytes_per_weight(model) == 2 / 8 + 2 / 16


def with_loud_inputs(model, every=16, factor=16.0):
    """The same function, with some inputs of its linear maps louder and their weights smaller."""
    loud = copy.deepcopy(model)
    with torch.no_grad():
        for layer in loud.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            readers = {
                layer.input_layernorm: (attention.q_proj, attention.k_proj, attention.v_proj),
                layer.post_attention_layernorm: (mlp.gate_proj, mlp.up_proj),
            }
            for norm, maps in readers.items():
                norm.weight[::every] *= factor
                for reader in maps:
                    reader.weight[:, ::every] /= factor
    return loud


def test_gptq_and_awq_repair_what_rounding_to_nearest_breaks(trained):
    """Where inputs differ in size the gain is large: no CPU's order of summing turns it over."""
    tokens = trained[1]
    model = with_loud_inputs(trained[0])
    whole = perplexity(trained[0], [tokens])
    assert math.isclose(perplexity(model, [tokens]), whole, rel_tol=1e-4)

    def damage(change):
        changed = copy.deepcopy(model)
        change(changed)
        return perplexity(changed, [tokens]) / whole - 1

    nearest = damage(lambda m: round_layers(m, GRID))
    by_gptq = damage(lambda m: calibrate_layers(m, with_gptq(GRID), [tokens]))
    by_awq = damage(lambda m: calibrate_layers(m, with_awq(GRID), [tokens]))
    print(
        f"perplexity above that of the whole model: {nearest:.2f} nearest, {by_gptq:.2f} GPTQ, {by_awq:.2f} AWQ"
    )
    assert nearest > 0.5
    assert by_gptq < 0.75 * nearest
    assert by_awq < 0.9 * nearest


def test_calibration_stops_after_the_layers_asked_for(trained):
    model = copy.deepcopy(trained[0]).train()
    calibrate_layers(model, with_gptq(GRID), [trained[1]], 1)
    assert len(list(packed_layers(model))) == 7
    assert model.training  # as it came, also where not all layers were asked for


@pytest.mark.parametrize(("kind", "expected"), [("int8", 1 + 4 / 72), ("nf4", 0.5 + 4 / 64)])
def test_bitsandbytes(trained, kind, expected):
    pytest.importorskip("bitsandbytes")
    model = copy.deepcopy(trained[0])
    bitsandbytes_layers(model, kind)
    assert perplexity(model, [trained[1]]) < 1.2 * perplexity(*trained[:1], [trained[1]])
    assert bitsandbytes_bytes_per_weight(model) == pytest.approx(expected, rel=0.02)
    with pytest.raises(ValueError, match="int8 or nf4"):
        bitsandbytes_layers(model, "int7")
    with pytest.raises(ValueError, match="no layer of bitsandbytes"):
        bitsandbytes_bytes_per_weight(trained[0])


@pytest.mark.parametrize("bits", [8, 4])
def test_torchao(trained, bits):
    pytest.importorskip("torchao")
    model = copy.deepcopy(trained[0])
    torchao_layers(model, bits, group_size=16, num_layers=1)
    changed = [type(m.weight).__name__ for m in layer_linears(model).values()]
    assert len([name for name in changed if name != "Parameter"]) == 7
    assert perplexity(model, [trained[1]]) < 1.2 * perplexity(trained[0], [trained[1]])


def test_torchs_own_kernels():
    torch.manual_seed(0)
    linear = torch.nn.Linear(128, 64, bias=False)
    x = torch.randn(8, 128)
    exact = linear(x)
    assert (torch_dynamic_linear(linear)(x) - exact).norm() < 0.03 * exact.norm()
    assert (int4_product(linear, 32)(x.bfloat16()).float() - exact).norm() < 0.2 * exact.norm()


def test_modelopt_says_what_it_needs(trained):
    pytest.importorskip("modelopt")
    with pytest.raises(ValueError, match="one of max, gptq, awq"):
        modelopt_layers(trained[0], "gtpq", GRID, [trained[1]])
    with pytest.raises(ValueError, match="symmetric groups"):
        modelopt_layers(trained[0], "gptq", Grid(4, None), [trained[1]])
