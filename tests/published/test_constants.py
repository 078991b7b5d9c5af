"""The fitted constants: few, listed, with errors, and unknown where the rows do not tell."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from workshop.cli import main
from workshop.published import constants
from workshop.published.constants import Fitted, fitted_constants, standard_errors, text
from workshop.published.fit import BOUNDS, SETS, cases_on

TABLES = Path(__file__).parents[2] / "data" / "published"
pytestmark = pytest.mark.skipif(not TABLES.exists(), reason="the published tables are not here")


def test_at_most_twenty_constants_are_fitted():
    count = sum(len(names) for _, names in SETS.values()) + sum(map(len, constants.OF_STACKS.values()))
    assert count <= 20
    assert {name for _, names in SETS.values() for name in names} <= set(BOUNDS)


@pytest.fixture
def small(monkeypatch):
    """One device alone."""
    monkeypatch.setattr(constants, "SETS", {"GB200": SETS["GB200"]})


def test_each_is_listed_with_its_error_and_bounds(small):
    found = fitted_constants(TABLES)
    assert [(one.owner, one.name) for one in found] == [
        ("GB200", "host_seconds"),
        ("composer", "hidden_passes"),
    ]
    assert all(0 < one.error < 1 and one.rows > 10 for one in found[:1])
    lines = text(found).splitlines()
    assert re.match("2 constants are fitted to published training runs; of them unknown: [12]", lines[0])
    assert "UNKNOWN: no table isolates it" in lines[2]


def test_a_bound_or_a_large_error_makes_it_unknown():
    one = Fitted("H100", "skew", 0.005, 0.1, 50, (1e-4, 0.015))
    assert one.unknown == ""
    assert replace(one, value=0.015).unknown == "on its bound"
    assert replace(one, error=0.21).unknown == "standard error 21%"
    assert "UNKNOWN" in str(replace(one, error=np.inf))


def test_too_few_groups_determine_nothing():
    cases = cases_on(TABLES, ("GB200",))[:2]
    found = standard_errors(cases, "GB200", ("GB200",), ("sustained", "sustained_fp8"))
    assert np.isinf(found).all()


def test_rows_twice_are_no_more_certain():
    """Rows of a group err together, so doubling them changes nothing."""
    devices, names = SETS["GB200"]
    cases = cases_on(TABLES, devices)
    once, twice = (standard_errors(rows, "GB200", devices, names) for rows in (cases, cases + cases))
    assert twice == pytest.approx(once, rel=1e-6)


def test_the_command_lists_them(small, capsys):
    assert main(["calibrate", "--constants", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found] == ["host_seconds", "hidden_passes"]
    assert found[-1]["unknown"] == "no table isolates it"
    assert found[-1]["error"] is None
