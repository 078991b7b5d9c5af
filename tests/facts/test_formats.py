import math

import pytest

from workshop.facts.formats import FORMATS, float_format

SMALL = [form for form in FORMATS.values() if form.bits <= 8]


def test_the_lectures_example():
    rounded = {name: FORMATS[name].round(0.3952) for name in ("fp16", "bf16", "e4m3", "e5m2")}
    assert f"{rounded['fp16']:.6f}" == "0.395264"
    assert f"{rounded['bf16']:.6f}" == "0.394531"
    assert rounded["e4m3"] == 0.40625
    assert rounded["e5m2"] == 0.375
    assert FORMATS["e4m3"].pattern(0.3952) == "0 0101 101"
    assert FORMATS["e5m2"].pattern(0.3952) == "0 01101 10"


@pytest.mark.parametrize(
    ("name", "bits", "bias", "largest", "smallest_normal", "smallest"),
    [
        ("fp32", 32, 127, (2 - 2**-23) * 2.0**127, 2.0**-126, 2.0**-149),
        ("tf32", 19, 127, (2 - 2**-10) * 2.0**127, 2.0**-126, 2.0**-136),
        ("bf16", 16, 127, (2 - 2**-7) * 2.0**127, 2.0**-126, 2.0**-133),
        ("fp16", 16, 15, 65504, 2.0**-14, 2.0**-24),
        ("e5m2", 8, 15, 57344, 2.0**-14, 2.0**-16),  # arXiv 2209.05433, table 1
        ("e4m3", 8, 7, 448, 2.0**-6, 2.0**-9),
        ("e2m1", 4, 1, 6, 1, 0.5),  # OCP MX v1.0, section 5.3.3
    ],
)
def test_ranges(name, bits, bias, largest, smallest_normal, smallest):
    form = FORMATS[name]
    assert (form.bits, form.bias, form.largest) == (bits, bias, largest)
    assert (form.smallest_normal, form.smallest) == (smallest_normal, smallest)


@pytest.mark.parametrize("form", SMALL, ids=str)
def test_every_value_is_its_own_nearest_and_codes_count_upwards(form):
    half = form.num_codes // 2
    values = [form.decode(code) for code in range(half)]
    finite = [value for value in values if math.isfinite(value)]
    assert finite == sorted(set(finite))
    assert finite[-1] == form.largest
    for code, value in enumerate(values):
        if not math.isnan(value):
            assert form.encode(value) == code
            assert form.encode(-value) == code + half
            assert form.decode(code + half) == -value
    assert (
        len([value for value in values if math.isnan(value)]) == {"e5m2": 3, "e4m3": 1, "e2m1": 0}[form.name]
    )


@pytest.mark.parametrize("form", SMALL, ids=str)
def test_between_two_values_the_nearer_and_in_the_middle_the_even_one(form):
    values = [form.decode(code) for code in range(form.num_codes // 2)]
    finite = [value for value in values if math.isfinite(value)]
    for code in range(len(finite) - 1):
        lower, upper = finite[code : code + 2]
        middle, little = (lower + upper) / 2, (upper - lower) / 1000
        assert form.round(middle - little) == lower
        assert form.round(middle + little) == upper
        assert form.encode(middle) == code + code % 2


def test_too_large():
    e5m2, e4m3, e2m1 = (FORMATS[name] for name in ("e5m2", "e4m3", "e2m1"))
    assert e5m2.round(61439.9) == 57344
    assert e5m2.round(61440) == math.inf  # the middle to 65,536, which would be even
    assert e5m2.round(61440, saturate=True) == 57344
    assert e5m2.round(-math.inf, saturate=True) == -57344
    assert (e4m3.round(464), e4m3.round(1e9), e4m3.round(-math.inf)) == (448, 448, -448)
    assert e2m1.round(100) == 6


def test_zero_keeps_its_sign():
    assert math.copysign(1, FORMATS["fp16"].round(-1e-30)) == -1
    assert FORMATS["e4m3"].encode(-0.0) == 0x80


def test_refusals():
    with pytest.raises(ValueError, match="NaN"):
        FORMATS["e2m1"].round(math.nan)
    with pytest.raises(ValueError, match="8 bits"):
        FORMATS["e4m3"].decode(256)
    with pytest.raises(ValueError, match="bf16"):
        float_format("bf15")
