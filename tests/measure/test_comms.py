"""Collectives of real gloo ranks, counted to the byte."""

from pathlib import Path

import pytest

from workshop import launch
from workshop.measure.comms import Collective, tabulate

HERE = Path(__file__).resolve().parent


def test_every_collective_of_two_real_ranks():
    ranks = launch.torchrun(launch.Script(HERE / "programs" / "collectives.py"), 2)
    rows = {(row["name"], row["axis"]): row for row in ranks[0].rows}
    counted = {key: (row["count"], row["payload_bytes"]) for key, row in rows.items()}
    assert counted == {
        ("all_reduce", "world"): (3, 400 + 800 + 400),  # an axis over all ranks is the world's own group
        ("broadcast", "world"): (1, 400),
        ("all_gather", "world"): (2, 800 + 800),
        ("reduce_scatter", "world"): (1, 400),
        ("all_to_all", "world"): (1, 400),
        ("reduce", "world"): (1, 400),
        ("gather", "world"): (1, 800),
        ("send", "world"): (1, 400),
    }
    assert all(row["group_size"] == 2 for row in rows.values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("all_reduce", 150.0),
        ("all_gather", 75.0),
        ("reduce_scatter", 75.0),
        ("broadcast", 100.0),
        ("recv", 0.0),
        ("somebody::own_collective", 100.0),
    ],
)
def test_ring_bytes_of_four_ranks(name, expected):
    assert Collective(name, "world", 4, 100).wire_bytes == expected


def test_a_group_of_one_sends_nothing():
    assert Collective("all_reduce", "world", 1, 100).wire_bytes == 0


def test_calls_of_a_kind_become_one_row():
    calls = [
        Collective("all_reduce", "dp", 4, 100),
        Collective("send", "pp", 2, 7),
        Collective("all_reduce", "dp", 4, 300),
    ]
    first, second = tabulate(calls)
    assert (first.name, first.count, first.payload_bytes, first.wire_bytes) == ("all_reduce", 2, 400, 600)
    assert (second.name, second.count) == ("send", 1)
