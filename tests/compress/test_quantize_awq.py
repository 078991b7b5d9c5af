"""AWQ: the search, its error by the Hessian, folding into a norm, and modelopt's result."""

import pytest
import torch
from torch import nn

from workshop.compress.quantize import Grid, output_error, round_to_nearest
from workshop.compress.quantize_awq import awq, fold, input_scale
from workshop.compress.quantize_packed import PackedLinear

GRID = Grid(3, 16)


def problem():
    torch.manual_seed(0)
    inputs = torch.randn(300, 64)
    inputs[:, ::13] *= 15  # some inputs are far larger
    return torch.randn(24, 64), inputs, inputs.T @ inputs / len(inputs), inputs.abs().mean(0)


def test_better_than_round_to_nearest_where_some_inputs_are_large():
    weight, inputs, hessian, magnitude = problem()
    found = awq(weight, hessian, magnitude, GRID)
    nearest = output_error(weight, round_to_nearest(weight, GRID).dequantize(), inputs)
    assert output_error(weight, found.dequantize(), inputs) < 0.7 * nearest
    assert 0 < found.exponent <= 1


def test_its_errors_are_those_of_the_outputs():
    weight, inputs, hessian, magnitude = problem()
    found = awq(weight, hessian, magnitude, GRID, num_steps=4)
    assert list(found.errors) == [0, 0.25, 0.5, 0.75, 1]
    assert found.errors[found.exponent] == min(found.errors.values())
    direct = output_error(weight, found.dequantize(), inputs) ** 2
    assert found.errors[found.exponent] == pytest.approx(direct, rel=1e-3)
    nearest = output_error(weight, round_to_nearest(weight, GRID).dequantize(), inputs) ** 2
    assert found.errors[0] == pytest.approx(nearest, rel=1e-3)


def test_equal_inputs_need_no_scale():
    found = input_scale(torch.full((8,), 3.0), 0.7)
    torch.testing.assert_close(found, torch.ones(8))


def test_the_packed_layer_multiplies_its_inputs():
    weight, inputs, hessian, magnitude = problem()
    found = awq(weight, hessian, magnitude, GRID)
    layer = PackedLinear(found.quantized, input_scale=1 / found.scale)
    torch.testing.assert_close(layer(inputs), inputs @ found.dequantize().T, rtol=1e-4, atol=1e-3)


def test_folding_changes_nothing():
    weight, inputs, _, magnitude = problem()
    norm = nn.RMSNorm(64)
    norm.weight.data = torch.rand(64) + 0.5
    before = norm(inputs) @ weight.T
    scale = input_scale(magnitude, 0.5)
    norm.weight.data, (weight,) = fold(norm.weight.data, [weight], scale)
    torch.testing.assert_close(norm(inputs) @ weight.T, before, rtol=1e-4, atol=1e-4)


def test_steps_are_asked_for():
    weight, _, hessian, magnitude = problem()
    with pytest.raises(ValueError, match="num_steps = 0"):
        awq(weight, hessian, magnitude, GRID, num_steps=0)


def test_equals_modelopt():
    pytest.importorskip("modelopt")
    from workshop.compress.quantize_library import modelopt_linear

    weight, inputs, hessian, magnitude = problem()
    linear = nn.Linear(64, 24, bias=False)
    linear.weight.data = weight.clone()
    grid = Grid(4, 16, scale_dtype=torch.float32)
    ours = awq(weight, hessian, magnitude, grid, num_steps=10, by_weight=True)
    theirs = modelopt_linear(linear, "awq", grid, inputs)
    assert ((ours.dequantize() - theirs).abs() < 1e-4).float().mean() > 0.99
