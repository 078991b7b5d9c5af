"""Rounding to a grid: the loops and the fast version, torch's and bitsandbytes' codes, the ends of the range."""

import math

import pytest
import torch

from workshop.compress.quantize import Grid, one_group_at_a_time, output_error, round_to_nearest

GRIDS = [Grid(bits, 16, symmetric) for bits in (8, 4, 3, 2) for symmetric in (True, False)]
INT8_ROWS = Grid(8, None, scale_dtype=torch.float32)


def weight(rows=12, columns=48, seed=0):
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    values[1, :16] = 0  # a group of zeros
    values[2] = values[2].abs() + 0.5  # all on one side
    return values


@pytest.mark.parametrize("grid", [*GRIDS, Grid(4, None), Grid(4, None, False)], ids=str)
def test_the_fast_version_equals_the_loops(grid):
    fast, plain = round_to_nearest(weight(), grid), one_group_at_a_time(weight(), grid)
    assert torch.equal(fast.codes.float(), plain.codes.float())
    torch.testing.assert_close(fast.scales, plain.scales, rtol=0, atol=0)
    torch.testing.assert_close(fast.zeros, plain.zeros, rtol=0, atol=0)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_no_number_is_off_by_more_than_half_a_step(grid):
    found = round_to_nearest(weight(), grid)
    off = (found.dequantize() - weight()).abs().reshape(12, 3, 16)
    # A scale of 16 bits may end up a little short of the largest number.
    # A zero point that is rounded can push an end out by half a step more.
    half_steps = 1.001 if grid.symmetric else 2.001
    assert (off / found.scales.unsqueeze(-1)).max() <= half_steps / 2 + 2**-10 * 2**grid.bits / 2
    assert found.codes.min() >= grid.smallest
    assert found.codes.max() <= grid.largest


def test_zero_stays_zero():
    for grid in GRIDS:
        values = weight()
        values[3, ::5] = 0
        assert (round_to_nearest(values, grid).dequantize()[values == 0] == 0).all()


def test_absmax_equals_torch_per_row():
    values = weight()
    ours = round_to_nearest(values, INT8_ROWS)
    zeros = torch.zeros(len(values), dtype=torch.int32)
    theirs = torch.fake_quantize_per_channel_affine(values, ours.scales[:, 0], zeros, 0, -128, 127)
    assert torch.equal(ours.codes, (theirs / ours.scales).round().to(torch.int8))
    torch.testing.assert_close(ours.dequantize(), theirs)


def test_zero_point_equals_torch_fake_quantization():
    values = weight()
    grid = Grid(4, None, symmetric=False, scale_dtype=torch.float32)
    ours = round_to_nearest(values, grid)
    theirs = torch.fake_quantize_per_channel_affine(
        values, ours.scales[:, 0], ours.zeros[:, 0].int(), 0, 0, 15
    )
    torch.testing.assert_close(ours.dequantize(), theirs)


def test_absmax_equals_bitsandbytes():
    functional = pytest.importorskip("bitsandbytes.functional")
    values = weight(seed=3).half()
    codes, largest, _ = functional.int8_vectorwise_quant(values)
    ours = round_to_nearest(values, INT8_ROWS)
    apart = (ours.codes.int() - codes.int()).abs()
    # Theirs multiplies by 127 / largest, ours divides by largest / 127: a tie may fall either way.
    assert apart.max() <= 1
    assert (apart == 0).float().mean() > 0.999
    zero_row = largest == 0
    torch.testing.assert_close(ours.scales[~zero_row, 0], largest[~zero_row].float() / 127)


def test_smaller_groups_and_more_bits_are_nearer():
    values, inputs = weight(64, 128), torch.randn(200, 128)
    values[:, 5] *= 20
    by_group = [
        output_error(values, round_to_nearest(values, Grid(4, size)).dequantize(), inputs)
        for size in (None, 64, 16)
    ]
    by_bits = [
        output_error(values, round_to_nearest(values, Grid(bits, 16)).dequantize(), inputs)
        for bits in (2, 3, 4, 8)
    ]
    assert by_group == sorted(by_group, reverse=True)
    assert by_bits == sorted(by_bits, reverse=True)
    assert math.isclose(output_error(values, values, inputs), 0)


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="from 2 to 8"):
        Grid(1)
    with pytest.raises(ValueError, match="group_size = 0"):
        Grid(4, 0)
    with pytest.raises(ValueError, match="rows of 48 do not divide into groups of 20"):
        round_to_nearest(weight(), Grid(4, 20))
