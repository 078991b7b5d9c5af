"""Intervals from residuals: they cover sources that they never saw, and a source of a thousand rows is one."""

import numpy as np
import pytest

from workshop.published.pairs import floor_and_slope
from workshop.published.residuals import Sample, coverage, inside, quantile, scales, standardised

rng = np.random.default_rng(3)


def made(sources=24, rows=40, factor=3.0, scale=0.05):
    """Residuals whose scale is known: a doubt makes it `factor` times as wide."""
    names = np.repeat([f"s{i:02}" for i in range(sources)], rows)
    doubt = (np.arange(sources * rows) % 2).astype(float)
    residuals = rng.laplace(0, scale * np.where(doubt > 0, factor, 1.0))
    return Sample(
        ("doubt", "idle"), names, residuals, np.column_stack([doubt, 0 * doubt]), np.ones(len(doubt))
    )


def test_the_scale_that_made_the_residuals_is_found():
    x = scales(made())
    assert np.exp(x[0]) == pytest.approx(0.05, rel=0.15)
    assert np.exp(x[1]) == pytest.approx(3.0, rel=0.2)
    assert x[2] == 0  # nobody has that doubt


def test_a_doubt_never_narrows():
    assert scales(made(factor=0.2))[1] == 0


def test_eight_in_ten_of_a_source_that_was_left_out_lie_inside():
    assert coverage(made())["all rows"] == pytest.approx(0.8, abs=0.04)


def test_a_source_says_nothing_about_its_own_interval():
    """One source is a hundred times worse: left out, hardly a row of it is inside, and the others are."""
    some = made()
    wild = some.sources == "s05"
    worse = Sample(
        some.names,
        some.sources,
        np.where(wild, 100 * some.residuals, some.residuals),
        some.doubts,
        some.weights,
    )
    held = inside(worse)
    assert held[wild].mean() < 0.2
    assert held[~wild].mean() > 0.7


def test_rows_of_one_source_count_as_much_as_they_differ():
    """Half of the variance between sources: of forty rows of one, each more is worth less."""
    plain = made(factor=1.0)
    shift = rng.normal(0, np.sqrt(2) * 0.05, 24)  # a double exponential's variance is twice its scale squared
    alike = Sample(
        plain.names, plain.sources, plain.residuals + np.repeat(shift, 40), plain.doubts, plain.weights
    )
    assert plain.alike == pytest.approx(0, abs=0.02)
    assert plain.votes[:40].sum() == pytest.approx(40, rel=0.45)
    assert alike.alike == pytest.approx(0.5, abs=0.15)
    assert alike.votes[:40].sum() == pytest.approx(40 / (1 + 39 * alike.alike))


def test_standardised_residuals_have_one_scale():
    some = made()
    z, doubtful = np.abs(standardised(some)), some.doubts[:, 0] > 0
    assert z[doubtful].mean() == pytest.approx(z[~doubtful].mean(), rel=0.2)


def test_a_weighted_quantile():
    values = np.array([3.0, 1.0, 2.0])
    assert quantile(values, np.ones(3), 0.5) == pytest.approx(2)
    assert quantile(values, np.array([1, 100, 1]), 0.5) == pytest.approx(1, abs=0.1)


def test_floor_and_slope_of_pairs_are_found():
    distance = rng.uniform(0, 0.6, 4000)
    residuals = rng.laplace(0, np.sqrt(0.02**2 + (0.3 * distance) ** 2))
    names = np.repeat([f"s{i}" for i in range(8)], 500)
    some = Sample(("distance",), names, residuals, distance[:, None], np.ones(4000))
    floor, slope = floor_and_slope(some)
    assert floor == pytest.approx(0.02, rel=0.4)
    assert slope == pytest.approx(0.3, rel=0.3)
