"""Bytes exactly; time against a measured table, and against common sense about topology."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from workshop.facts.catalogue import cluster
from workshop.facts.microbenchmarks import between_nodes, dispatch, in_node
from workshop.predict.collectives import (
    COLLECTIVES,
    DISPATCHERS,
    Wires,
    network_share,
    network_start,
    node_curve,
    sent_copies,
    wire_bytes,
)
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
    assert wire_bytes("all_reduce", np.array([1000, 2000]), np.array([4, 1])).tolist() == [1500, 0]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_alone_there_is_nothing_to_say(collective):
    assert wire_bytes(collective, 1e9, 1) == 0
    assert NODES.seconds(collective, 1e9, 1) == 0


def test_unknown_collective_is_named():
    with pytest.raises(ValueError, match="all_gather"):
        wire_bytes("allgather", 1, 2)


def test_small_messages_cost_latency_and_large_ones_bandwidth():
    small, large = NODES.seconds("all_reduce", 1024, 8), NODES.seconds("all_reduce", 2**30, 8)
    assert small == pytest.approx(22.55e-6)  # as the smallest that was timed, of 16 KiB
    assert large == pytest.approx(wire_bytes("all_reduce", 2**30, 8) / 222e9, rel=0.03)


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
    bare = replace(cluster("64xA100-80GB"), inter=None)
    with pytest.raises(ValueError, match="between its nodes"):
        Wires.of(bare, rates_of("A100-80GB"))


@pytest.mark.skipif(not TABLES.exists(), reason="the published tables are not here")
def test_measured_all_reduces():
    """vTrain's table, 2 to 8 A100: its powers of two are read, all sizes and groups between are predicted."""
    with (TABLES / "vtrain_allreduce_lut.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["gpu"] == "A100"]
    ranks, size = (np.array([float(r[c]) for r in rows]) for c in ("gpus_in_one_node", "size_bytes"))
    measured = np.array([float(r["time_out_of_place_ns"]) for r in rows]) / 1e9
    wires = Wires.of(cluster("64xA100-80GB"), rates_of("A100-80GB"), library="nccl-2022")
    error = np.abs(wires.seconds("all_reduce", size, ranks) / measured - 1)
    assert error.mean() < 0.09
    assert np.quantile(error[np.isin(ranks, (2, 4, 8))], 0.95) < 0.1


def test_a_measured_collective_is_predicted_as_it_was_measured():
    for row in in_node():
        curve = node_curve(row.device, row.library)
        assert curve is not None
        assert curve.time(row.collective, row.num_bytes, row.ranks) == pytest.approx(row.seconds, rel=1e-6)


def test_between_two_sizes_and_two_groups_time_lies_between():
    curve = node_curve("A100-80GB")
    small, middle, large = (float(curve.time("all_gather", size, 8)) for size in (2**20, 1.5 * 2**20, 2**21))
    assert small < middle < large
    four, six, eight = (float(curve.time("all_reduce", 2**28, ranks)) for ranks in (4, 6, 8))
    assert four < six < eight


def test_a_group_larger_than_any_that_was_timed_reaches_the_same_bus():
    curve, size = node_curve("GB200"), 2.0**32
    buses = [2 * (n - 1) / n * size / float(curve.time("all_reduce", size, n)) for n in (4, 8, 72)]
    assert buses == pytest.approx([buses[0]] * 3, rel=0.01)


def test_a_slower_link_makes_messages_longer():
    """An A800 is an A100 with 400 of its 600 GB/s."""
    fast, slow = (
        Wires.of(cluster(name), rates_of(name.split("x")[1])) for name in ("8xA100-80GB", "8xA800-80GB")
    )
    big, tiny = 2.0**31, 1024.0
    assert slow.seconds("all_gather", big, 8) / fast.seconds("all_gather", big, 8) == pytest.approx(
        1.5, rel=0.02
    )
    assert slow.seconds("all_gather", tiny, 8) == fast.seconds("all_gather", tiny, 8)


def test_devices_that_nobody_timed_keep_latency_and_rate():
    assert node_curve("MI300X") is None
    assert Wires.of(cluster("8xMI300X"), rates_of("MI300X")).curve is None


def test_between_nodes_the_measured_curve_is_kept():
    """Of 4 nodes of 8 B200 the shape is read: within a seventh everywhere, with the best rate that was timed."""
    some = [row for row in between_nodes() if (row.device, row.collective) == ("B200", "all_reduce")]
    wires = Wires.of(cluster("32xB200"), replace(rates_of("B200"), network=0.94))
    predicted = wires.seconds("all_reduce", np.array([float(row.num_bytes) for row in some]), np.array(32))
    ratio = predicted / np.array([row.seconds for row in some])
    assert ratio.min() > 0.9
    assert ratio.max() < 1.15
    assert np.diff(predicted).min() >= 0


def test_all_gathers_over_2_to_64_nodes_are_predicted():
    """By the shape of an all-reduce that was timed on 4 nodes elsewhere: slower, the less a ring's step moves."""
    some = [row for row in between_nodes() if row.collective == "all_gather"]
    ratio = np.array(
        [
            float(
                Wires.of(cluster(f"{8 * row.nodes}xB200"), rates_of("B200")).seconds(
                    "all_gather", row.num_bytes, np.array(8 * row.nodes)
                )
            )
            / row.seconds
            for row in some
        ]
    )
    assert {row.nodes for row in some} == {2, 4, 8, 16, 32, 64}
    assert np.abs(ratio - 1).mean() < 0.045
    assert np.abs(ratio - 1).max() < 0.11
    best = max(row.num_bytes * 31 / 32 / row.seconds for row in some if row.nodes == 4)
    assert rates_of("B200").network == pytest.approx(best / 400e9, rel=0.01)


def test_a_few_bytes_take_longer_over_more_nodes():
    two, thirty_two = (float(network_start(n)) for n in (2, 32))
    assert (two, thirty_two) == (pytest.approx(47.54e-6), pytest.approx(62.99e-6))
    assert two < float(network_start(8)) < thirty_two < float(network_start(512)) < 1e-4
    assert network_share(np.array([1e3, 2.3e5, 2e6, 1e8])) == pytest.approx([0.018, 0.54, 0.83, 1], abs=0.01)


NAMES = {name: kind for kind, name in DISPATCHERS.items()}


def timed_and_predicted(row):
    wires = Wires.of(cluster(f"{row.ranks}x{row.device}"), rates_of(row.device))
    how = NAMES[row.dispatcher]
    token = 2 * row.hidden_size
    return row.seconds, float(
        wires.dispatch_seconds(row.tokens, token, row.experts_per_token, row.ranks, how)
    )


def test_tokens_reach_their_experts_as_they_were_timed():
    """On one link there and back are taken as equally fast; across nodes nothing of the table is used, and
    HybridEP's kernels are faster than a ring of NCCL's.
    """
    for row in dispatch():
        timed, predicted = timed_and_predicted(row)
        inside = row.ranks <= row.per_node
        room = 0.09 if inside else 0.15 if row.dispatcher == "alltoall" else 0.49
        assert predicted == pytest.approx(timed, rel=room), row


def test_an_alltoall_sends_a_copy_to_each_expert_and_a_dispatcher_one_to_each_place():
    assert sent_copies("alltoall", 8, 8) == 7
    assert sent_copies("tokens", 1, 8) == pytest.approx(7 / 8)
    assert sent_copies("tokens", 1000, 8) == pytest.approx(7)
    assert sent_copies("tokens", 8, 2) < 1 < sent_copies("tokens", 8, 8) < 7
    wires = Wires.of(cluster("64xB200"), rates_of("B200"))
    once, each = (float(wires.dispatch_seconds(4096, 8192.0, 8, 64, how)) for how in DISPATCHERS)
    assert once < each
