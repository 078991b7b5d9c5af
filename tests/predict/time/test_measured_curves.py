"""Products and experts against kernels timed alone, and the constants that come from them."""

import pytest

from benchmarks import fit_curves
from workshop.predict.time.rates import rates_of


@pytest.mark.parametrize("name", fit_curves.DEVICES)
def test_products_are_predicted_as_they_were_timed(name):
    """What `rates.toml` has is what the table determines, and predicts it to a tenth."""
    found, error = fit_curves.products(name)
    rates = rates_of(name)
    for key, value in found.items():
        if (name, key) != ("A100-80GB", "ramp"):  # half of it: see the file
            assert getattr(rates, key) == pytest.approx(value, rel=0.03), (name, key)
    assert error < 0.12


@pytest.mark.parametrize("name", ["H100", "GB200", "B200"])
def test_experts_are_predicted_as_they_were_timed(name):
    found, error = fit_curves.experts(name)
    rates = rates_of(name)
    for key, value in found.items():
        assert getattr(rates, key) == pytest.approx(value, rel=0.05), (name, key)
    assert error < 0.1
    assert found["grouped"] < 1  # a server's kernel gains on plain products, which training launches


def test_products_in_8_bits_reach_less_than_twice_those_in_16():
    for name in ("H100", "GB200", "B200"):
        share = fit_curves.share_in_8_bits(name, {})
        assert share == pytest.approx(rates_of(name).matmul_fp8, rel=0.03)
    assert fit_curves.share_in_8_bits("A100-80GB", {}) is None
