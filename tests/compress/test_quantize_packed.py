"""Packing round trips, bytes are real, and the packed layer computes with the weights its codes stand for."""

import pytest
import torch
from torch import nn

from workshop.compress.quantize import Grid, round_to_nearest
from workshop.compress.quantize_packed import PackedLinear, pack, pack_bits, unpack, unpack_bits
from workshop.predict.weight_formats import WeightFormat


@pytest.mark.parametrize("bits", range(2, 9))
def test_round_trip(bits):
    codes = torch.randint(2**bits, (5, 48), dtype=torch.uint8)
    assert torch.equal(unpack_bits(pack_bits(codes, bits), bits), codes)
    assert torch.equal(unpack(pack(codes, bits), bits), codes)
    assert pack(codes, bits).nbytes == 5 * 48 * bits // 8


@pytest.mark.parametrize("bits", [4, 8])
def test_the_fast_packing_equals_the_plain_one(bits):
    codes = torch.randint(2**bits, (5, 48), dtype=torch.uint8)
    assert torch.equal(pack(codes, bits), pack_bits(codes, bits))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="does not fill whole bytes"):
        pack_bits(torch.zeros(2, 3, dtype=torch.uint8), 3)
    with pytest.raises(ValueError, match="do not fit into 3 bits"):
        pack_bits(torch.full((2, 8), 8, dtype=torch.uint8), 3)
    with pytest.raises(ValueError, match="do not fit into 4 bits"):
        pack_bits(torch.full((2, 8), -1), 4)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, 16), (3, 16), (2, 48)])
def test_the_layer(bits, group, symmetric):
    torch.manual_seed(0)
    linear = nn.Linear(48, 10)
    grid = Grid(bits, group, symmetric)
    found = round_to_nearest(linear.weight.detach(), grid)
    packed = PackedLinear(found, linear.bias.detach())
    again = packed.quantized()
    assert torch.equal(again.codes, found.codes)
    assert torch.equal(again.zeros, found.zeros)
    torch.testing.assert_close(packed.weight_values(), found.dequantize(), rtol=0, atol=0)
    x = torch.randn(2, 3, 48)
    torch.testing.assert_close(packed(x), nn.functional.linear(x, found.dequantize(), linear.bias))
    form = WeightFormat("", bits, group or 0, 16, 0 if symmetric else bits)
    predicted = form.bytes_per_weight(48) * 480
    assert (
        predicted - 0.01 <= packed.bytes_held < predicted + (0 if symmetric else bits) + 0.01
    )  # filled to eight


def test_it_is_saved_and_moved_as_it_is():
    grid = Grid(3, 16, symmetric=False)
    first, second = (PackedLinear(round_to_nearest(torch.randn(8, 32), grid)) for _ in range(2))
    second.load_state_dict(first.state_dict())
    x = torch.randn(4, 32)
    assert torch.equal(first(x), second(x))
    assert not list(first.parameters())
    assert first(x.bfloat16()).dtype == torch.bfloat16
