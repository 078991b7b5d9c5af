import math

import pytest
import torch

from tests.precision.torch_bits import bits_of
from workshop.facts.formats import FORMATS
from workshop.precision.formats import (
    TORCH_DTYPES,
    cast,
    decode,
    e4m3_overflow,
    encode,
    exponents,
    power_of_two,
    round_to,
    rounding_error,
    torch_dtype,
)

MILLION = 1_000_000
NAMED = sorted(TORCH_DTYPES)


@pytest.fixture(scope="module")
def million():
    """Log-uniform over all of fp32, subnormal numbers included, both signs."""
    generator = torch.Generator().manual_seed(0)
    exponent = torch.randint(-149, 128, (MILLION,), generator=generator)
    mantissa = torch.rand(MILLION, generator=generator, dtype=torch.float64) + 1
    sign = torch.randint(0, 2, (MILLION,), generator=generator) * 2 - 1
    return (mantissa * power_of_two(exponent) * sign).float()


@pytest.fixture(scope="module")
def dense():
    """Log-uniform over what 8 and 16 bits hold, where `million` is thin; and numbers below the smallest."""
    generator = torch.Generator().manual_seed(1)
    exponent = torch.randint(-27, 17, (MILLION,), generator=generator)
    return (torch.randn(MILLION, generator=generator).double() * power_of_two(exponent)).float()


def specials(form):
    """Every value of a format, every middle between two, their fp32 neighbours, and what is too large."""
    if form.bits <= 16:
        values = decode(torch.arange(form.num_codes // 2), form)
        values = values[values.isfinite()].double()
        middles = ((values[:-1] + values[1:]) / 2).float()
    else:
        values = torch.tensor([form.smallest, form.smallest_normal, 1.0, form.largest]).double()
        middles = torch.tensor([form.smallest_normal])
    edge = torch.tensor(
        [form.largest + form.largest * form.epsilon / 4, form.largest * 1.5, 3.4e38, math.inf, 0.0]
    )
    one = torch.cat([values.float(), middles, edge.float()])
    near = [one, torch.nextafter(one, torch.tensor(math.inf)), torch.nextafter(one, torch.tensor(-math.inf))]
    return torch.cat([*near, *(-each for each in near), torch.tensor([math.nan, -math.nan])])


def same_as_torch(x, name):
    """Compare the bits; a NaN only with a NaN."""
    if name == "e4m3" and math.isnan(e4m3_overflow()):  # before torch 2.13
        x = x[(x.abs() <= 464) | x.isnan()]
    theirs = x.to(TORCH_DTYPES[name])
    nan = theirs.float().isnan()
    ours = encode(x, name)
    assert torch.equal(nan, x.isnan())
    assert torch.equal(decode(ours, name).isnan(), nan)
    assert torch.equal(ours[~nan], bits_of(theirs)[~nan])
    assert torch.equal(decode(ours, name)[~nan], theirs.float()[~nan])
    assert torch.equal(round_to(x, name)[~nan], theirs.float()[~nan])


@pytest.mark.parametrize("name", NAMED)
def test_a_million_numbers_are_rounded_as_torch_does(million, dense, name):
    same_as_torch(million, name)
    same_as_torch(dense, name)


@pytest.mark.parametrize("name", NAMED)
def test_every_value_every_middle_and_what_is_special(name):
    same_as_torch(specials(FORMATS[name]), name)


@pytest.mark.parametrize("name", [name for name in NAMED if name != "fp32"])
def test_every_code_is_decoded_as_torch_does(name):
    form = FORMATS[name]
    codes = torch.arange(form.num_codes)
    theirs = codes.to(torch.uint8 if form.bits == 8 else torch.int32).to(
        torch.uint8 if form.bits == 8 else torch.int16
    )
    values = theirs.view(TORCH_DTYPES[name]).float()
    ours = decode(codes, name)
    nan = values.isnan()
    assert torch.equal(ours.isnan(), nan)
    assert torch.equal(bits_of(ours)[~nan], bits_of(values)[~nan])  # the sign of zero as well


@pytest.mark.parametrize("form", FORMATS.values(), ids=str)
def test_a_tensor_is_rounded_like_one_number_at_a_time(form, dense):
    some = torch.cat(
        [dense[:500], torch.tensor([0.0, -0.0, math.inf, -math.inf, 1e30, form.largest, form.smallest / 2])]
    )
    for saturate in (False, True):
        codes = encode(some, form, saturate=saturate)
        assert codes.tolist() == [form.encode(value, saturate=saturate) for value in some.tolist()]
        assert decode(codes, form).tolist() == [form.decode(code) for code in codes.tolist()]


def test_tf32_keeps_ten_digits_of_fp32(dense):
    rounded = round_to(dense, "tf32")
    bits = bits_of(rounded)
    assert bool((bits & (2**13 - 1) == 0).all())
    cut = (bits_of(dense) >> 13) << 13  # what cutting would give: the rounded one is it, or the next
    assert bool(((bits == cut) | (bits == cut + 2**13)).all())


def test_saturated_cast_is_the_rounding_by_hand(million):
    numbers = torch.cat([million, torch.tensor([math.inf, -math.inf])])
    for name in ("fp16", "e4m3", "e5m2", "tf32", "e2m1"):
        assert torch.equal(cast(numbers, name), round_to(numbers, name, saturate=True))


def test_exponents_next_to_a_power_of_two():
    x = torch.tensor([8.0, math.nextafter(8, 0), 1e-40, 0.0, math.inf])
    assert exponents(x.double()).tolist()[:3] == [3, 3, -133]
    assert exponents(torch.tensor([math.nextafter(8, 0)], dtype=torch.float64)).tolist() == [2]
    assert power_of_two(torch.tensor([-149, 0, 127])).tolist() == [2.0**-149, 1, 2.0**127]


def test_what_is_lost():
    x = torch.tensor([1.0, 1e-9, 1e6, 0.0])
    lost = rounding_error(x, round_to(x, "fp16"))
    assert lost.zeros == 0.25
    assert lost.overflows == 0.25
    assert lost.relative == pytest.approx(1e-9, rel=1e-3)
    assert rounding_error(x, x).relative == 0


def test_refusals():
    with pytest.raises(ValueError, match="tf32"):
        torch_dtype("tf32")
    with pytest.raises(ValueError, match="NaN"):
        round_to(torch.tensor([math.nan]), "e2m1")
    with pytest.raises(ValueError, match="0 to 255"):
        decode(torch.tensor([256]), "e4m3")
