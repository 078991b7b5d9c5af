import math

import pytest

from workshop.facts.units import format_alike, format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        (3, 3),
        (0, 0),
        (1e9, 10**9),
        ("3", 3),
        ("17 B", 17),
        ("256MiB", 256 * 2**20),
        (" 256 mib ", 256 * 2**20),
        ("1.5 GB", 1_500_000_000),
        ("1.5GiB", 1_610_612_736),
        ("2 kB", 2_000),
        ("2KB", 2_000),
        ("2 KiB", 2_048),
        ("1_000 MB", 10**9),
        ("1e3 MB", 10**9),
        (".5 GiB", 2**29),
        ("80 GB", 80 * 10**9),
        ("1 PiB", 2**50),
        ("1 PB", 10**15),
        ("0.1 GB", 100_000_000),  # 0.1 is no binary fraction: floats would be one byte off somewhere
        ("0.3 KiB", 307),  # 307.2: never more than was asked for
        (10**25, 10**25),
        ("9007199254740993", 9007199254740993),  # 2**53 + 1, which a float cannot hold
    ],
)
def test_parse(text, num_bytes):
    parsed = parse_bytes(text)
    assert parsed == num_bytes
    assert type(parsed) is int


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", 'write it like "256MiB"'),
        ("many", "not a size"),
        ("MiB", "not a size"),
        ("1,5 GB", "the decimal mark is a point"),
        ("1.5.2 GB", "not a size"),
        ("256M", r"ambiguous: write MB \(1,000,000 bytes\) or MiB \(1,048,576 bytes\)"),
        ("64k", r"ambiguous: write kB \(1,000 bytes\) or KiB \(1,024 bytes\)"),
        ("80Gi", "ambiguous: write GB"),
        ("8 Gb", "a unit of bits; for bytes write GB"),
        ("8 Gib", "a unit of bits; for bytes write GiB"),
        ("3 apples", "unknown unit 'apples'; the units are B, kB, MB"),
        ("-1 MB", "negative"),
        (-1, "negative"),
        (1.5, "not a whole number of bytes"),
        (math.inf, "not a whole number of bytes"),
        (math.nan, "not a whole number of bytes"),
        (True, "True is not a size"),
        (None, "None is not a size"),
    ],
)
def test_parse_refuses_in_words(text, said):
    with pytest.raises(ValueError, match=said):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("num_bytes", "options", "text"),
    [
        (0, {}, "0 B"),
        (1023, {}, "1,023 B"),
        (1024, {}, "1.0 KiB"),
        (2**20 - 1, {}, "1.0 MiB"),
        (256 * 2**20, {}, "256.0 MiB"),
        (1_500_000_000, {"binary": False}, "1.5 GB"),
        (1_500_000_000, {}, "1.4 GiB"),
        (1_610_612_736, {"decimals": 3}, "1.500 GiB"),
        (-(2**20), {}, "-1.0 MiB"),
        (999, {"binary": False}, "999 B"),
        (999_960, {"binary": False}, "1.0 MB"),
        (5000 * 2**50, {}, "5,000.0 PiB"),
        (2**31, {"decimals": 0}, "2 GiB"),
    ],
)
def test_format_bytes(num_bytes, options, text):
    assert format_bytes(num_bytes, **options) == text


@pytest.mark.parametrize("text", ["1.0 KiB", "256.0 MiB", "1.5 GiB", "3.0 TiB", "17 B"])
def test_formatting_undoes_parsing(text):
    assert format_bytes(parse_bytes(text)) == text


def test_format_bytes_refuses():
    with pytest.raises(ValueError, match="inf is not a number of bytes"):
        format_bytes(math.inf)
    with pytest.raises(ValueError, match="decimals is -1"):
        format_bytes(1, decimals=-1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (3e-9, "3 ns"),
        (1.25e-5, "12.5 µs"),
        (0.34, "340 ms"),
        (0.9996, "1 s"),
        (1.25, "1.25 s"),
        (59.96, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (3599.7, "1 h"),
        (7_380, "2 h 3 min"),
        (86_400 * 144, "144 d"),
        (86_400 * 3 + 4 * 3600, "3 d 4 h"),
        (-0.002, "-2 ms"),
    ],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text


def test_format_seconds_refuses():
    with pytest.raises(ValueError, match="nan is not a duration"):
        format_seconds(math.nan)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ((58.6, 60.4, 68.0), (["58.6", "60.4", "68.0"], "s")),
        ((0.95, 61.2), (["950", "61,200"], "ms")),
        ((599.0, 1200.0), (["599", "1,200"], "s")),
        ((600.0, 1200.0), (["10.0", "20.0"], "min")),
        ((0.0, 90_000.0), (["0.00", "1.04"], "days")),
        ((2e-9,), (["2.00"], "ns")),
        ((), ([], "s")),
    ],
)
def test_a_column_of_durations_has_one_unit(seconds, said):
    assert format_alike(seconds) == said


@pytest.mark.parametrize("wrong", [math.inf, -1.0])
def test_what_is_no_duration_is_refused(wrong):
    with pytest.raises(ValueError, match="is not a duration"):
        format_alike([1.0, wrong])
