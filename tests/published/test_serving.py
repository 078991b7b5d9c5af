"""Published servers predicted again: what is kept is what the tables give, and the errors stay where they are."""

from __future__ import annotations

import csv
import json
import re
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from workshop.cli import main
from workshop.facts.published import FOLDER
from workshop.predict.serving.engines import FILE, engine
from workshop.published.serving import (
    SOURCES,
    ServingConstants,
    fit,
    intervals,
    kept,
    left_out,
    read_rows,
    summary,
    text,
)


@pytest.fixture(scope="module")
def rows():
    return read_rows()[0]


@pytest.fixture(scope="module")
def without_its_source(rows):
    return left_out(rows)


def test_the_constants_that_are_kept_are_those_that_are_fitted(rows):
    found = fit(rows)
    assert engine("gpt-fast").all_reduce_seconds == pytest.approx(found.all_reduce)
    assert engine("gpt-fast").unpacks("int8") == found.int8
    assert engine("gpt-fast").unpacks("int4-32") == found.int4
    assert engine("llama.cpp").kernels == found.llama_cpp


def test_the_intervals_are_those_of_the_residuals(rows):
    kept_there, found = tomllib.loads(FILE.read_text("utf-8"))["intervals"], intervals(rows)
    assert set(kept_there) == set(found)
    assert kept_there["devices"] == found["devices"]
    assert kept_there["wider"] == pytest.approx(found["wider"], abs=0.011)
    for name in ("time_to_first_token", "time_between_tokens", "tokens_per_second"):
        assert kept_there[name] == pytest.approx(found[name], abs=2e-4)


def test_a_source_that_is_left_out_decides_nothing_of_its_own_prediction(rows):
    others = [row for row in rows if row.source != "gpt_fast"]
    wrong = [replace(row, value=3 * row.value) if row.source == "gpt_fast" else row for row in rows]
    assert fit(row for row in wrong if row.source != "gpt_fast") == fit(others)
    assert fit(others).int8 == ServingConstants().int8  # nobody else serves in 8 bits
    assert fit(wrong) != fit(rows)


def test_the_errors_stay_where_they_are(rows, without_its_source):
    for residuals, most in ((kept(rows), 0.12), (without_its_source, 0.16)):
        by_source = {s: [abs(o.error) for o in residuals if o.row.source == s] for s in SOURCES}
        assert np.mean([np.mean(errors) for errors in by_source.values()]) < most, by_source


def test_eight_in_ten_of_what_was_left_out_lie_between_the_bars(rows, without_its_source):
    quantities = {row.quantity for row in rows}
    bars = tomllib.loads(FILE.read_text("utf-8"))["intervals"]
    for name in quantities:
        logs = [one for one in without_its_source if one.row.quantity == name]
        inside = [bars[name][0] <= one.log <= bars[name][1] for one in logs]
        assert np.mean(inside) > 0.6, name


def test_each_row_is_read_or_has_a_reason():
    rows, left = read_rows()
    for source in SOURCES:
        with (FOLDER / f"serving_{source}.csv").open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        assert all(line["source"] for line in lines)
        assert len(lines) == sum(r.source == source for r in rows) + sum(one[0] == source for one in left)
    assert len(rows) > 150
    assert all(reason for *_, reason in left)


def test_what_was_measured_decides_nothing(tmp_path):
    rows = read_rows()[0]
    for source in SOURCES:
        name = f"serving_{source}.csv"
        with (FOLDER / name).open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows({**line, "value": "1"} for line in lines)
    blind = read_rows(tmp_path)[0]
    assert [row.predicted() for row in blind] == [row.predicted() for row in rows]


def test_the_command_prints_a_line_for_each_source_and_quantity(capsys):
    assert main(["validate", "--serving", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["table"] for one in found} == {f"serving_{source}" for source in SOURCES}
    rows, left = read_rows()
    said = text(summary(rows, left), left)
    assert "serving_gpt_fast" in said
    assert re.search(r"not predicted: \d+ rows of serving_lmdeploy: N requests do not fit at once", said)
