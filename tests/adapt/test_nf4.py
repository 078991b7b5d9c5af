"""NF4 by hand: bitsandbytes' numbers, codes, scales and bytes."""

import pytest
import torch

from workshop.adapt.nf4 import (
    block_codes,
    dynamic_values,
    nearest,
    nf4_values,
    quantize_nf4,
)
from workshop.facts.nf4 import nf4_bits


@pytest.fixture(scope="module")
def library():
    """bitsandbytes, imported by the worker that runs this file and by no other.

    For odd shapes it has torch.compile translate its own sums, which takes longer than all the rest of this file.
    """
    import bitsandbytes.functional

    with torch.compiler.set_stance("force_eager"):
        yield bitsandbytes.functional


SHAPES = [(1000, 1024), (576, 192), (33, 7), (64,), (1, 1)]


def test_the_sixteen_numbers(library):
    assert torch.equal(nf4_values(), library.get_4bit_type("nf4", device="cpu"))
    # Appendix E of the paper.
    assert abs(nf4_values()[1] + 0.6961928009986877) < 1e-9
    assert abs(nf4_values()[14] - 0.7229568362236023) < 1e-9


def test_the_dynamic_numbers(library):
    assert torch.equal(dynamic_values(), library.create_dynamic_map())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_codes_and_scales_bit_for_bit(shape, dtype, library):
    weight = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.05).to(dtype)
    packed, state = library.quantize_4bit(weight, quant_type="nf4")
    ours = quantize_nf4(weight)
    assert torch.equal(ours.absmax(), state.absmax)
    assert torch.equal(ours.packed, packed.view(-1))
    assert torch.equal(ours.dequantize(), library.dequantize_4bit(packed, state).view(shape))
    assert ours.dequantize().dtype == dtype


def test_every_code_at_every_midpoint(library):
    values = nf4_values()
    middles = (values[:-1] + values[1:]) / 2
    for step in (-1e-6, 0.0, 1e-6):
        x = torch.cat([middles + step, torch.ones(49)])  # absmax is 1
        packed, _ = library.quantize_4bit(x, quant_type="nf4")
        assert torch.equal(quantize_nf4(x).packed, packed.view(-1))


def test_a_block_of_zeros_stays_zero():
    assert torch.equal(quantize_nf4(torch.zeros(3, 64), double=True).dequantize(), torch.zeros(3, 64))


@pytest.mark.parametrize("double", [False, True])
def test_an_odd_number_of_weights_is_packed_where_they_are(double):
    quantized = quantize_nf4(torch.zeros(3, 3, device="meta"), double)
    assert quantized.packed.device.type == quantized.dequantize().device.type == "meta"
    assert quantized.packed.shape == (5,)


def test_double_quantization(library):
    """bitsandbytes' CPU kernel decides otherwise only within 2**-16 of a middle between two codes."""
    weight = torch.randn(2048, 2048, generator=torch.Generator().manual_seed(0)) * 0.05
    packed, state = library.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    ours = quantize_nf4(weight, double=True)
    assert torch.equal(ours.packed, packed.view(-1))
    assert ours.scales.offset == state.offset
    assert torch.equal(ours.scales.scales, state.state2.absmax)
    other = ours.scales.codes != state.absmax
    assert other.float().mean() < 0.005
    values = dynamic_values()
    low = torch.minimum(ours.scales.codes, state.absmax)[other].long()
    plain = quantize_nf4(weight).absmax() - ours.scales.offset
    scaled = (plain / ours.scales.scales.repeat_interleave(256))[other]
    middles = (values[low] + values[low + 1]) / 2
    assert (scaled - middles).abs().max() < 2**-16 + 1e-7
    error = (ours.absmax() - quantize_nf4(weight).absmax()).abs().max()
    assert 0 < error < 0.02 * quantize_nf4(weight).absmax().max()


@pytest.mark.parametrize(("double", "bits"), [(False, 4.5), (True, 4.127)])
def test_bytes(double, bits):
    weight = torch.randn(1024, 1024)
    assert abs(8 * quantize_nf4(weight, double).num_bytes / weight.numel() - bits) < 1e-3
    assert abs(nf4_bits(double) - bits) < 1e-3


def test_nearest_is_the_nearest():
    x, values = torch.rand(1000) * 2 - 1, nf4_values()
    assert torch.equal(nearest(x, values).long(), (x[:, None] - values).abs().argmin(dim=1))


def test_a_normal_weight_uses_every_code():
    codes, _ = block_codes(torch.randn(1 << 20), 64, nf4_values())
    share = torch.bincount(codes.long(), minlength=16) / len(codes)
    assert share.min() > 0.01
