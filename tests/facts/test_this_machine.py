"""This machine as a cluster, before and after it was calibrated."""

import pytest

from workshop.facts import catalogue
from workshop.facts.this_machine import load_calibration, save_calibration, this_machine


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_memory_is_known_and_rates_are_not():
    cluster = catalogue.cluster("this-machine")
    assert cluster.device.memory_bytes > 10**8
    assert cluster.memory_per_rank(4) == cluster.device.memory_bytes // 4
    with pytest.raises(ValueError, match=r"calibrate\(\) measures them"):
        cluster.device.peak("fp32")
    with pytest.raises(ValueError, match="no link within nodes is known"):
        cluster.link([0, 1])


def test_a_calibration_is_kept():
    save_calibration({"peak_flops": {"fp32": 1e11}, "bytes_per_second": 2e9, "latency_seconds": 1e-4})
    cluster = this_machine(2)
    assert cluster.device.peak("fp32") == 1e11
    assert cluster.link([0, 1]).seconds(2e9) == pytest.approx(1.0001)


def test_a_calibration_with_an_unknown_key_is_refused():
    with pytest.raises(ValueError, match="did you mean 'peak_flops'"):
        save_calibration({"peak_flop": {}})
    assert load_calibration() == {}
