"""Whole-number products: equal to the numbers they stand for; outliers taken apart; bitsandbytes beside it."""

import pytest
import torch
from torch import nn

from workshop.compress.quantize import Grid, round_to_nearest
from workshop.compress.quantize_outliers import (
    INT8_ROWS,
    Int8Linear,
    int8_product,
    outlier_columns,
    row_codes,
)

INFINITY = float("inf")


def layer_and_inputs():
    torch.manual_seed(0)
    inputs = torch.randn(40, 64)
    inputs[:, 7] *= 60
    return nn.Linear(64, 32), inputs


def test_the_product_is_that_of_the_rounded_numbers():
    linear, inputs = layer_and_inputs()
    weight = round_to_nearest(linear.weight.detach(), INT8_ROWS)
    codes, scale = row_codes(inputs)
    wanted = (codes * scale) @ weight.dequantize().T
    torch.testing.assert_close(int8_product(inputs, weight, INFINITY), wanted, rtol=1e-4, atol=1e-4)


def test_outliers_apart_are_nearer():
    linear, inputs = layer_and_inputs()
    assert outlier_columns(inputs).nonzero().flatten().tolist() == [7]
    exact = linear(inputs)
    plain, mixed = (
        (Int8Linear(linear, threshold)(inputs) - exact).norm().item() for threshold in (INFINITY, 6.0)
    )
    assert mixed < plain / 3


def test_as_near_as_bitsandbytes():
    bnb = pytest.importorskip("bitsandbytes")
    from workshop.compress.quantize_library import bitsandbytes_layers  # noqa: F401 - it is there

    linear, inputs = layer_and_inputs()
    theirs = bnb.nn.Linear8bitLt(64, 32, has_fp16_weights=False, threshold=6.0)
    theirs.weight = bnb.nn.Int8Params(linear.weight.detach(), requires_grad=False, has_fp16_weights=False)
    theirs.bias = linear.bias
    exact, ours = linear(inputs), Int8Linear(linear)(inputs)
    off = (theirs.to("cpu")(inputs).float() - exact).norm()
    assert (ours - exact).norm() < 1.2 * off
    assert off < 1.2 * (ours - exact).norm()


def test_shapes_types_and_zero_rows():
    linear, inputs = layer_and_inputs()
    inputs = inputs.view(4, 10, 64).bfloat16()
    inputs[0, 0] = 0
    out = Int8Linear(linear)(inputs)
    assert out.shape == (4, 10, 32)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out[0, 0].float(), linear.bias.bfloat16().float())


def test_other_grids_are_refused():
    weight = round_to_nearest(torch.randn(8, 64), Grid(8, 32))
    with pytest.raises(ValueError, match="one symmetric int8 scale a row"):
        int8_product(torch.randn(2, 64), weight)
