"""How often to save: closed forms against play, and against each other."""

import numpy as np
import pytest

from workshop.predict.failures import Failures, daly_interval, goodput, simulate_goodput, young_interval

LLAMA = Failures().seconds_between(16_384)


def test_llama_3_405b_failed_every_three_hours():
    assert pytest.approx(3.09, abs=0.01) == LLAMA / 3600
    assert Failures().seconds_between(1_024) == pytest.approx(16 * LLAMA)


@pytest.mark.parametrize(("save", "restart"), [(30.0, 0.0), (120.0, 600.0), (600.0, 1200.0)])
def test_the_formula_is_the_mean_of_what_is_played(save, restart):
    interval = daly_interval(save, LLAMA)
    played = simulate_goodput(interval, save, LLAMA, restart, intervals=100_000)
    assert played == pytest.approx(goodput(interval, save, LLAMA, restart), abs=0.006)


@pytest.mark.parametrize("save", [1.0, 30.0, 600.0])
def test_daly_is_the_best_interval_and_young_is_near(save):
    candidates = np.geomspace(save / 4, 4 * LLAMA, 4_000)
    best = max(goodput(t, save, LLAMA) for t in candidates)
    assert goodput(daly_interval(save, LLAMA), save, LLAMA) == pytest.approx(best, abs=2e-5)
    assert 0 <= best - goodput(young_interval(save, LLAMA), save, LLAMA) < 0.002


def test_a_save_as_long_as_the_time_between_failures():
    assert daly_interval(3 * LLAMA, LLAMA) == LLAMA
    assert goodput(1e9, 10.0, LLAMA) == 0.0


def test_young_is_a_root():
    assert young_interval(60.0, 7200.0) == pytest.approx((2 * 60 * 7200) ** 0.5)


def test_without_failures_only_saving_costs():
    assert goodput(90.0, 10.0, 1e12) == pytest.approx(0.9, rel=1e-4)
    assert simulate_goodput(90.0, 10.0, 1e12) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: young_interval(0, 10), "save_seconds is 0"),
        (lambda: daly_interval(1, -1), "seconds_between is -1"),
        (lambda: goodput(0, 1, 10), "interval_seconds is 0"),
        (lambda: Failures(device_hours_between=0), "device_hours_between is 0"),
        (lambda: Failures(restart_seconds=-5), "restart_seconds is -5"),
        (lambda: Failures().seconds_between(0), "num_devices is 0"),
    ],
)
def test_errors_speak(call, words):
    with pytest.raises(ValueError, match=words):
        call()
