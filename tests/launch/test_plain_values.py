"""What ranks report, as data: it comes back as it was, and nothing in it can run."""

import io
import json
import math
import pickle
import struct
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from workshop.facts.measurement import Measurement
from workshop.facts.traffic import Traffic
from workshop.launch.report import Damaged, Pickled, dumped, loaded

ITSELF: list = [1]
ITSELF.append(ITSELF)


def back(value, *, allow_pickle=False):
    record = loaded(io.BytesIO(b"".join(dumped({"value": value}))), allow_pickle=allow_pickle)
    return record["value"]


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -(10**40), 0.1, -0.0, math.inf, "ünï\ud800\n", "", [], [1, [2.5, "x"]], (), (1, (2,)), {1, 2},
        frozenset({3, 4}), {"a": {"b": [1]}}, {1: "x", (2, 3): None}, {"$": "pickle"}, b"\0\xff", bytearray(b"x"),
        2 + 3j, Path("/a/b c"), np.float32(1.5), np.int64(-3), np.bool_(True),
        Measurement(rank=1, parts={"weights": 3}, traffic=(Traffic("all_reduce", "shard", 2, 1, 8, 8),)),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_data_comes_back_as_it_was(value):
    found = back(value)
    assert type(found) is type(value) or isinstance(value, Path)
    assert found == value
    assert repr(found) == repr(value)  # -0.0, and what hides in lists


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="f4").reshape(2, 3), np.zeros((0, 3)), np.array(7), np.array([1, 2])[::-1], np.eye(3).T,
        np.array(["a", "lönger"]), np.array([b"x"]), np.array([1 + 2j]), np.array(["2026-01-01"], "M8[D]"),
        np.asfortranarray(np.ones((2, 2))), np.arange(3, dtype=">i2"), np.array([True, False]),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)  # fmt: skip
def test_arrays_come_back_and_can_be_written_to(array):
    found = back({"nested": [array]})["nested"][0]
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable


def test_nan_and_a_long_list():
    assert math.isnan(back([math.nan])[0])
    numbers = [i / 7 for i in range(100_000)]
    assert back(numbers) == numbers


@pytest.mark.parametrize("value", [OrderedDict(a=1), slice(1), ITSELF, np.array([{}], object), range(3), int])
def test_what_is_no_data_is_pickled_and_read_only_if_asked(value):
    found = back(value)
    assert isinstance(found, Pickled)
    assert "pickled and not read" in repr(found)
    assert "--allow-pickle" in repr(found)
    with pytest.raises(AttributeError, match="shape: <a .* pickled and not read"):
        _ = found.shape
    assert repr(back(value, allow_pickle=True)) == repr(value)


def test_only_the_one_value_is_left_unread():
    record = loaded(io.BytesIO(b"".join(dumped({"loss": [1.0], "odd": range(3)}))), allow_pickle=False)
    assert record["loss"] == [1.0]
    assert record["odd"].kind == "builtins.range"


class Evil:
    ran = False

    def __reduce__(self):
        return (exec, ("import tests.launch.test_plain_values as t; t.Evil.ran = True",))


def framed(content, *buffers):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<4sQ", b"wsr1", len(text)) + text + b"".join(buffers)


def one(value, *buffers):
    return framed({"values": {"x": value}, "sizes": [len(b) for b in buffers]}, *buffers)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"loss": Evil()}),
        pickle.dumps({"loss": Evil()}, 0),
        framed(b"[" * 100_000),
        framed(b"\xff\xfe"),
        framed([1]),
        framed({"values": [], "sizes": []}),
        framed({"values": {}, "sizes": [-1]}),
        framed({"values": {}, "sizes": ["x"]}),
        framed({"values": {}, "sizes": [True]}),
        one({"$": "module", "name": "os"}),
        one({"$": "array", "dtype": "O", "shape": [1], "at": 0}, b"12345678"),
        one({"$": "array", "dtype": "f4,O", "shape": [1], "at": 0}, b"1" * 12),
        one({"$": "array", "dtype": "f4", "shape": [1 << 60], "at": 0}, b"1234"),
        one({"$": "array", "dtype": "f4", "shape": [1], "at": 9}, b"1234"),
        one({"$": "array", "dtype": [["a"]], "shape": [1], "at": 0}, b"1234"),
        one({"$": "record", "class": "os:system", "fields": {"command": "true"}}),
        one({"$": "record", "class": "workshop.facts.measurement:json", "fields": {}}),
        one({"$": "record", "class": "workshop.facts.measurement:Measurement.load", "fields": {"path": "/etc/passwd"}}),
        one({"$": "record", "class": "workshop.facts.measurement:Path", "fields": {}}),
        one({"$": "record", "class": "workshop.facts.../../x:Y", "fields": {}}),
        one({"$": "record", "class": "workshop.facts.nothing:Y", "fields": {}}),
        one({"$": "record", "class": "workshop.launch.session:Session", "fields": {}}),
        one({"$": "record", "class": "workshop.facts.measurement:Measurement", "fields": {"rankk": 1}}),
        one({"$": "complex", "items": [1, 2, 3]}),
        one({"$": "dict", "items": [[{"$": "dict", "items": []}, 1]]}),
        one({"$": "set", "items": [[]]}),
        one({"$": ["tuple"], "items": []}),
    ],
    ids=lambda data: data[:60],
)  # fmt: skip
def test_what_nobody_wrote_is_damaged_and_runs_nothing(data):
    with pytest.raises(Damaged):
        loaded(io.BytesIO(data), allow_pickle=True)
    assert not Evil.ran


def test_an_evil_pickle_within_a_record_stays_closed():
    data = one({"$": "pickle", "class": "loss", "at": 0}, pickle.dumps(Evil()))
    assert loaded(io.BytesIO(data), allow_pickle=False)["x"].kind == "loss"
    assert not Evil.ran
    loaded(io.BytesIO(data), allow_pickle=True)
    assert Evil.ran  # so the test can fail
    Evil.ran = False


def test_a_length_is_not_believed():
    assert loaded(io.BytesIO(b"wsr1" + b"\xff" * 8), allow_pickle=False) is None
    assert loaded(io.BytesIO(framed({"values": {}, "sizes": [1 << 62]})), allow_pickle=False) is None


def test_every_cut_of_a_record_is_its_end():
    data = b"".join(dumped({"a": np.arange(5), "b": "x"}))
    for length in range(len(data)):
        assert loaded(io.BytesIO(data[:length]), allow_pickle=False) is None


def test_every_flipped_byte_is_told_or_changes_a_value_only():
    data = b"".join(dumped({"a": np.arange(3), "b": ["x", (1, 2)], "c": range(2)}))
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 0x15
        try:
            record = loaded(io.BytesIO(bytes(flipped)), allow_pickle=False)
        except Damaged:
            continue
        assert record is None or isinstance(record, dict)
