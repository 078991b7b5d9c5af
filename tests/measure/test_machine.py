"""Calibration: the line through the times, and this machine measured for real."""

import numpy as np
import pytest

from workshop.facts import catalogue
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.facts.this_machine import load_calibration
from workshop.measure import calibrate
from workshop.measure.machine import line_of
from workshop.predict.time.step import predict_step


def test_the_line_is_found_again():
    sizes = [2**power for power in range(10, 23, 2)]
    times = {size: 2e-4 + 2 * 3 / 4 * size / 1.5e9 for size in sizes}
    assert line_of(times, 4) == pytest.approx((2e-4, 1.5e9))


def test_noise_never_makes_a_rate_negative():
    start, rate = line_of({1024: 1e-3, 4096: 0.5e-3}, 2)
    assert start > 0
    assert rate > 0
    start, rate = line_of({1024: 1e-6, 4096: 9e-6}, 2)
    assert start > 0
    assert rate > 0


@pytest.mark.parametrize(
    ("options", "words"), [({"num_ranks": 1}, "needs at least 2"), ({"repeats": 0}, "at least once")]
)
def test_what_cannot_be_measured_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        calibrate(**options)


def test_this_machine_then_has_a_time(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="calibrate"):
        catalogue.cluster("this-machine").device.peak("fp32")
    found = calibrate(repeats=2)
    assert load_calibration() == found
    assert 1e8 < found["peak_flops"]["fp32"] < 1e13
    assert 1e8 < found["memory_bandwidth"] < 1e12
    assert found["latency_seconds"] < 5
    run = Run("gpt-1m", catalogue.cluster("this-machine"), Layout(precision="fp32"), 2, 128)
    step = predict_step(run)
    # A lower bound by arithmetic alone: every product at the measured rate.
    assert step.seconds > step.flops.model / found["peak_flops"]["fp32"] * 0.9
    assert np.isfinite(step.seconds)
    assert step.seconds < 60


def test_nothing_is_kept_unless_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calibrate(repeats=1, save=False)
    assert load_calibration() == {}
