import pytest
import torch

from tests.precision.torch_bits import bits_of
from workshop.facts.formats import float_format
from workshop.precision.blocks import BLOCK, encode_blocks, mx_scale
from workshop.precision.formats import TORCH_DTYPES, rounding_error


@pytest.fixture
def numbers():
    """Normal numbers, with a block of zeros, one of tiny, one of huge ones, and outliers."""
    torch.manual_seed(0)
    x = torch.randn(256, 512) * torch.rand(256, 1).mul(6).exp()
    x[0, :64] = 0
    x[1, :64] *= 1e-30
    x[2, :64] *= 1e30
    x[3::7, 5] *= 1000
    return x


@pytest.mark.parametrize(
    ("name", "bits"), [("mxfp8", 8.25), ("mxfp8-e5m2", 8.25), ("mxfp4", 4.25), ("nvfp4", 4.5), ("nf4", 4.5)]
)
def test_bits_a_number(numbers, name, bits):
    assert encode_blocks(numbers, name).bits == bits


@pytest.mark.parametrize("name", BLOCK)
def test_what_was_rounded_once_hardly_moves_again(numbers, name):
    numbers[2, :64] = 1  # under NVFP4 one huge block would take all the others' digits
    once = encode_blocks(numbers, name).decode()
    assert once.shape == numbers.shape
    assert rounding_error(once, encode_blocks(once, name).decode()).relative < 0.02


@pytest.mark.parametrize("name", ["mxfp8", "mxfp8-e5m2", "mxfp4"])
@pytest.mark.parametrize("rule", ["floor", "ceil"])
def test_a_power_of_two_is_what_the_rule_says(numbers, name, rule):
    blocks = encode_blocks(numbers, name, rule=rule)
    form = float_format({"mxfp8": "e4m3", "mxfp8-e5m2": "e5m2", "mxfp4": "e2m1"}[name])
    amax = numbers.reshape(-1, 32).abs().amax(-1).double()
    scales = blocks.scales.double()
    assert torch.equal(torch.frexp(scales).mantissa, torch.full_like(scales, 0.5))
    some = (amax > 0) & (scales > 2.0**-127) & (scales < 2.0**127)
    if rule == "ceil":
        assert bool((amax <= form.largest * scales)[some].all())
        assert bool((amax > form.largest * scales / 2)[some].all())
    else:
        top = 2.0**form.largest_exponent
        assert bool((amax >= top * scales)[some].all())
        assert bool((amax < 2 * top * scales)[some].all())


def test_ceil_cuts_nothing_and_floor_does():
    block = torch.full((1, 32), 480.0)  # floor: scale 1, and 480 > 448
    assert encode_blocks(block, "mxfp8", rule="floor").decode().max() == 448
    assert encode_blocks(block, "mxfp8", rule="ceil").decode().max() == 480
    assert mx_scale(torch.tensor([448.0, 448.1, 896.0]), "e4m3", "ceil").tolist() == [1, 2, 2]


@pytest.mark.parametrize(("name", "most"), [("mxfp8", 0.04), ("mxfp4", 0.15), ("nvfp4", 0.12), ("nf4", 0.1)])
def test_error_on_normal_numbers(name, most):
    torch.manual_seed(1)
    x = torch.randn(64, 1024)
    found = rounding_error(x, encode_blocks(x, name).decode()).relative
    assert most / 3 < found < most


def test_an_outlier_costs_its_own_block_only():
    torch.manual_seed(2)
    x = torch.randn(4, 64) * 1e-3
    x[0, 0] = 1e4
    rounded = encode_blocks(x, "mxfp8").decode()
    assert rounding_error(x[1:], rounded[1:]).relative < 0.04
    assert rounding_error(x[0, 32:], rounded[0, 32:]).relative < 0.04
    assert rounding_error(x[0, 1:32], rounded[0, 1:32]).zeros == 1


@pytest.mark.parametrize(
    ("shape", "name", "said"),
    [
        ((4, 48), "mxfp8", "48 numbers do not divide into mxfp8's blocks of 32"),
        ((3, 10), "nf4", "30 numbers"),
    ],
)
def test_what_does_not_divide_is_refused(shape, name, said):
    with pytest.raises(ValueError, match=said):
        encode_blocks(torch.ones(shape), name)


def test_infinity_and_unknown_names_are_refused():
    with pytest.raises(ValueError, match="no infinity to share"):
        encode_blocks(torch.full((1, 32), float("inf")), "mxfp8")
    with pytest.raises(ValueError, match="mxfp8"):
        encode_blocks(torch.ones(1, 32), "mxfp9")
    with pytest.raises(ValueError, match="rule"):
        encode_blocks(torch.ones(1, 32), "mxfp8", rule="up")


@pytest.mark.parametrize("rule", ["floor", "ceil"])
@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
def test_mxfp8_is_torchaos(numbers, rule, element):
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    from torchao.prototype.mx_formats.config import ScaleCalculationMode

    mode = ScaleCalculationMode.FLOOR if rule == "floor" else ScaleCalculationMode.RCEIL
    scales, data = mx.to_mx(numbers.contiguous(), TORCH_DTYPES[element], 32, mode)
    ours = encode_blocks(numbers, "mxfp8" if element == "e4m3" else "mxfp8-e5m2", rule=rule)
    some = ours.scales > 2.0**-127  # of a block of zeros everyone has a scale of their own
    exponent = torch.log2(ours.scales.double()).long() + 127
    assert torch.equal(bits_of(scales.view(torch.uint8)).view(-1)[some], exponent[some])
    assert torch.equal(bits_of(data).view(-1, 32)[some], ours.codes[some])


def test_nvfp4_is_torchaos():
    nv = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    torch.manual_seed(3)
    x = torch.randn(64, 256) * torch.rand(64, 1).mul(3).exp()
    scales, packed = nv.nvfp4_quantize(x, 16, nv.per_tensor_amax_to_scale(x.abs().max()))
    ours = encode_blocks(x, "nvfp4")
    assert torch.equal(scales.float().view(-1), ours.scales)
    theirs = torch.stack([bits_of(packed) & 15, bits_of(packed) >> 4], -1).view(-1, 16)
    assert torch.equal(theirs, ours.codes)


def test_nf4_is_bitsandbytes(numbers):
    functional = pytest.importorskip("bitsandbytes.functional")
    packed, state = functional.quantize_4bit(numbers, blocksize=64, quant_type="nf4")
    ours = encode_blocks(numbers, "nf4")
    theirs = torch.stack([packed.view(-1) >> 4, packed.view(-1) & 15], -1).view(-1, 64).long()
    assert torch.equal(state.absmax, ours.scales)
    assert torch.equal(
        theirs[1:], ours.codes[1:]
    )  # the first block is zeros, and zero times anything is zero
    assert torch.equal(functional.dequantize_4bit(packed, state), ours.decode())
