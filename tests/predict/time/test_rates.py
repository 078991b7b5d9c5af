"""Every device with constants is predicted, alone and in a node, and one as nodes of one device each."""

from dataclasses import replace

import pytest

from workshop.facts import catalogue
from workshop.facts.device import LinkSpec
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.predict.case import NotPredictable
from workshop.predict.time.rates import all_rates
from workshop.predict.time.step import predict_step

WITHOUT = {"MI250X", "TPU-v4", "TPU-v5e", "TPU-v5p", "TPU-v6e"}
"""Devices whose time nobody has described: two dies in one, and TPUs."""
DEVICES = sorted(set(catalogue.devices()) - WITHOUT)


def step(cluster, ranks=1):
    numbers = "bf16" if "bf16" in cluster.device.peak_flops else "amp-fp16"
    layout = Layout(precision=numbers) if ranks == 1 else Layout(shard=ranks, zero=3, precision=numbers)
    return predict_step(Run("llama-3.2-1b", cluster, layout, 1, 2048))


def test_what_has_no_constants_is_refused():
    assert set(all_rates()) - {"measured"} == set(DEVICES)
    for name in WITHOUT:
        with pytest.raises((ValueError, NotPredictable), match="no time constants are known"):
            step(catalogue.cluster(f"1x{name}"))


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_alone_keeps_a_physical_share_of_its_peak(name):
    cluster = catalogue.cluster(f"1x{name}")
    found = step(cluster)
    dtype = "bf16" if "bf16" in cluster.device.peak_flops else "fp16"
    reached = 6 * 1.2e9 * 2048 / found.seconds / cluster.device.peak(dtype)
    assert 0.05 < reached < 0.75  # a small model in eager mode
    assert found.low < found.seconds < found.high


@pytest.mark.parametrize("name", DEVICES)
def test_a_faster_link_makes_a_step_shorter(name):
    """And without a link it is refused."""
    node = replace(catalogue.cluster(f"8x{name}"), devices_per_node=8)
    slow, fast = (replace(node, intra=LinkSpec("a link", rate)) for rate in (5e9, 50e9))
    assert step(fast, 8).seconds < step(slow, 8).seconds
    if node.intra is None:
        with pytest.raises(ValueError, match="no link between its devices is known"):
            step(node, 8)


def test_nodes_of_one_device_need_no_link_within():
    alone = catalogue.cluster("2xMI325X")
    apart = replace(alone, devices_per_node=1, intra=None, inter=catalogue.link("pcie-4"))
    assert step(alone, 2).seconds < step(apart, 2).seconds < 100 * step(alone, 2).seconds
    for cluster in (alone, apart):
        one = replace(cluster, num_devices=1, intra=None)
        assert step(one).seconds == pytest.approx(step(replace(alone, num_devices=1)).seconds)
