"""GPTQ: fast equals plain, below round to nearest where inputs are correlated, equal to modelopt's."""

import pytest
import torch
from torch import nn

from workshop.compress.quantize import Grid, output_error, round_to_nearest
from workshop.compress.quantize_gptq import column_by_column, gptq


def correlated(positions=400, columns=64, seed=0):
    """Inputs that move together, a few of them large."""
    torch.manual_seed(seed)
    inputs = torch.randn(positions, 12) @ torch.randn(12, columns) + 0.3 * torch.randn(positions, columns)
    inputs[:, :3] *= 8
    return inputs


def problem(seed=0):
    inputs = correlated(seed=seed)
    return torch.randn(24, 64), inputs, inputs.T @ inputs / len(inputs)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [None, 8, 16, 64])
@pytest.mark.parametrize("block", [1, 16, 24, 128])
def test_fast_equals_column_by_column(group, block, symmetric):
    weight, _, hessian = problem()
    grid = Grid(4, group, symmetric, torch.float32)
    plain, fast = column_by_column(weight, hessian, grid), gptq(weight, hessian, grid, block=block)
    assert (plain.codes == fast.codes).float().mean() > 0.999
    torch.testing.assert_close(plain.dequantize(), fast.dequantize(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("static_groups", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_below_round_to_nearest_on_correlated_inputs(bits, static_groups):
    for seed in range(3):
        weight, inputs, hessian = problem(seed)
        grid = Grid(bits, 16)
        nearest = output_error(weight, round_to_nearest(weight, grid).dequantize(), inputs)
        found = gptq(weight, hessian, grid, static_groups=static_groups)
        assert output_error(weight, found.dequantize(), inputs) < 0.7 * nearest
        assert found.codes.min() >= grid.smallest
        assert found.codes.max() <= grid.largest


def test_uncorrelated_inputs_leave_nothing_to_make_up():
    weight = torch.randn(24, 64)
    grid = Grid(4, 16)
    assert torch.equal(gptq(weight, torch.eye(64), grid).codes, round_to_nearest(weight, grid).codes)


def test_static_groups_keep_the_scales():
    weight, _, hessian = problem()
    before = weight.clone()
    found = gptq(weight, hessian, Grid(4, 16), static_groups=True)
    assert torch.equal(found.scales, round_to_nearest(weight, Grid(4, 16)).scales)
    assert torch.equal(weight, before)


def test_an_input_that_is_never_seen():
    weight, inputs, _ = problem()
    inputs[:, 5] = 0
    found = gptq(weight, inputs.T @ inputs, Grid(4, 16))
    assert found.dequantize().isfinite().all()


def test_equals_modelopt():
    pytest.importorskip("modelopt")
    from workshop.compress.quantize_library import modelopt_linear

    weight, inputs, hessian = problem()
    linear = nn.Linear(64, 24, bias=False)
    linear.weight.data = weight.clone()
    grid = Grid(4, 16, scale_dtype=torch.float32)
    ours = gptq(weight, hessian, grid, static_groups=True).dequantize()
    theirs = modelopt_linear(linear, "gptq", grid, inputs)
    assert ((ours - theirs).abs() < 1e-5).float().mean() > 0.99  # the rest are ties, and what they move
    nearest = round_to_nearest(weight, grid).dequantize()
    assert output_error(weight, theirs, inputs) < 0.7 * output_error(weight, nearest, inputs)
