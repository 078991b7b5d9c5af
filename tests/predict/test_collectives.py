"""Bytes exactly; time against a measured table, and against common sense about topology."""

import csv
from pathlib import Path

import numpy as np
import pytest

from workshop.facts.catalogue import cluster
from workshop.predict.collectives import COLLECTIVES, Wires, wire_bytes
from workshop.predict.time.rates import rates_of

TABLES = Path(__file__).parents[2] / "data" / "published"
NODES = Wires.of(cluster("64xA100-80GB"), rates_of("A100-80GB"))


def test_bytes_are_the_ring_bounds():
    assert wire_bytes("all_reduce", 1000, 4) == 1500
    assert wire_bytes("all_reduce", 1000, 4) == wire_bytes("reduce_scatter", 1000, 4) + wire_bytes(
        "all_gather", 1000, 4
    )
    assert wire_bytes("all_to_all", 1000, 4) == 750
    assert wire_bytes("send", 1000, 2) == 1000


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_alone_there_is_nothing_to_say(collective):
    assert wire_bytes(collective, 1e9, 1) == 0
    assert NODES.seconds(collective, 1e9, 1) == 0


def test_unknown_collective_is_named():
    with pytest.raises(ValueError, match="all_gather"):
        wire_bytes("allgather", 1, 2)


def test_small_messages_cost_latency_and_large_ones_bandwidth():
    small, large = NODES.seconds("all_reduce", 1024, 8), NODES.seconds("all_reduce", 2**30, 8)
    assert small == pytest.approx(NODES.latency("all_reduce", 8, 8), rel=0.01)
    assert large == pytest.approx(wire_bytes("all_reduce", 2**30, 8) / NODES.link, rel=0.02)


def test_members_of_a_node_share_its_adapters():
    """A data-parallel group with 8 members a node uses 8 adapters, one with a member a node (tensor 8) uses
    one.
    """
    assert NODES.members(64, 1) == 8
    assert NODES.members(8, 8) == 1
    assert NODES.members(16, 2) == 4
    wide, narrow = NODES.seconds("all_reduce", 4e9, 64, 1), NODES.seconds("all_reduce", 4e9, 8, 8)
    assert narrow > 4 * wide


def test_experts_within_a_node_do_not_cross_the_network():
    near, far = NODES.dispatch_seconds(8192, 8192.0, 8, 8), NODES.dispatch_seconds(8192, 8192.0, 8, 32)
    assert far > 2 * near
    once_per_node = 8192 * 8192.0 * 3 / NODES.network
    assert far < once_per_node + 1e-3  # at most one copy for each of the three other nodes


def test_missing_links_are_asked_for():
    from dataclasses import replace

    bare = replace(cluster("64xA100-80GB"), inter=None)
    with pytest.raises(ValueError, match="between its nodes"):
        Wires.of(bare, rates_of("A100-80GB"))


@pytest.mark.skipif(not TABLES.exists(), reason="the published tables are not here")
def test_measured_all_reduces():
    """vTrain's table, 2 to 8 A100: 6 % in the mean over sizes, though the curve was fitted on all of it."""
    with (TABLES / "vtrain_allreduce_lut.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["gpu"] == "A100"][::16]
    ranks, size = (np.array([float(r[c]) for r in rows]) for c in ("gpus_in_one_node", "size_bytes"))
    measured = np.array([float(r["time_in_place_ns"]) for r in rows]) / 1e9
    error = np.abs(NODES.seconds("all_reduce", size, ranks) / measured - 1)
    assert error.mean() < 0.08
    assert np.quantile(error, 0.95) < 0.25
