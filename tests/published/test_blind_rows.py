"""Rows that no constant has seen: all are read, none is fitted on, and the page about them holds."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.blind_rows import (
    FIRST,
    PAGE,
    ROWS,
    first_predictions,
    inside,
    kind_of,
    page,
    predicted,
    slower,
)
from workshop.facts import catalogue
from workshop.facts.published import FOLDER
from workshop.predict.interval import bars
from workshop.published.blind import blind_sample, inside_without_source, times_as_wide, widening
from workshop.published.canonical_reader import read_runs
from workshop.published.record import SECONDS
from workshop.published.report import time_lines
from workshop.published.residuals import DOUBT
from workshop.published.tables import NOT_READ, READERS, read_folder


@pytest.fixture(scope="module")
def blind():
    return predicted()


def mean(errors):
    errors = list(errors)
    return sum(errors) / len(errors)


def of(lines, kind, group=""):
    return [line for line in lines if kind_of(line) == kind and line.group.startswith(group)]


def at_first(lines):
    before = first_predictions()
    return mean(
        abs(before[x.row, x.quantity] / x.measured - 1) for x in lines if (x.row, x.quantity) in before
    )


def test_each_row_is_read_and_says_where_it_is_from():
    records, skipped = read_runs(ROWS)
    assert skipped == []
    assert len(records) == 308
    assert all(record.source and record.note and record.group for record in records)
    # how many descriptions the page says were changed
    assert sum(record.software.name == "torch-compile" for record in records) == 28
    assert sum(record.software.network_share == 0.18 for record in records) == 47


def test_no_fit_sees_them():
    assert ROWS.stem in NOT_READ
    assert ROWS.stem not in READERS
    records, skipped = read_folder(FOLDER)
    assert ROWS.stem not in {record.table for record in records}
    assert sum(left.table == ROWS.stem for left in skipped) == 308


def test_what_was_predicted_first_is_of_these_rows(blind):
    _, lines, _ = blind
    with FIRST.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(first_predictions())  # none twice
    later = {line for line in lines if (line.row, line.quantity) not in first_predictions()}
    assert set(first_predictions()) <= {(line.row, line.quantity) for line in lines}
    assert all(line.kind == "time" for line in later)
    node = [line for line in later if "H800" in line.group]
    assert len(node) == 5
    assert len(later) - len(node) == 43
    assert max(line.signed_error for line in node) == pytest.approx(0.8, abs=0.01)


def test_the_page_is_what_comes_of_them(blind):
    assert PAGE.read_text(encoding="utf-8") == page(*blind)


def test_what_the_page_says_of_time(blind):
    records, lines, _ = blind
    time = [line for line in of(lines, "time") if (line.row, line.quantity) in first_predictions()]
    before, runs = first_predictions(), {record.row: record for record in records}
    off = sorted(abs(before[x.row, x.quantity] / x.measured - 1) for x in time)
    assert len(off) == 210
    assert round(mean(off), 2) == 0.31
    assert round(off[len(off) // 2], 2) == 0.21
    held = sum(inside(x, runs[x.row], before[x.row, x.quantity]) for x in time)
    assert 0.7 < held / len(time) < 0.9
    assert mean(line.error for line in time) < 0.8 * mean(off)
    lucie = of(lines, "time", "lucie")
    assert round(at_first(lucie), 2) == 0.35  # lesson 64 says so
    assert round(mean(line.error for line in lucie), 2) == 0.08
    llmsft = of(lines, "time", "llmsft A100")
    assert all(5.5 < x.measured / before[x.row, x.quantity] < 7.5 for x in llmsft)
    assert all(1.7 < x.measured / x.predicted < 2.2 for x in llmsft)
    small = [of(lines, "time", name) for name in ("gpt2", "nanochat", "llm.c", "flash-attention")]
    slow = [slower(line) for some in small for line in some]
    assert sum(0.05 < one < 0.31 for one in slow) > 0.7 * len(slow)
    seconds = [x for some in small for x in some if x.quantity == SECONDS and (x.row, x.quantity) in before]
    at_start = [before[x.row, x.quantity] / x.measured - 1 for x in seconds]
    assert sum(0.15 < one < 0.65 for one in at_start) > 0.85 * len(at_start)
    v100 = sorted(slower(x) for x in of(lines, "time", "transformers performance V100"))
    assert len(v100) == 7
    assert -0.47 < v100[0] < -0.45
    assert 0.06 < v100[1] < v100[4] < 0.17
    assert 0.38 < v100[5] < v100[6] < 0.42
    (nano,) = of(lines, "time", "nanoGPT A100")
    assert nano.signed_error < before[nano.row, nano.quantity] / nano.measured - 1 < 0


def test_what_the_page_says_of_memory(blind):
    _, lines, _ = blind
    for kind, low, high in (("allocated", 0.15, 0.17), ("reserved", 0.105, 0.12), ("device", 0.22, 0.235)):
        assert low < at_first(of(lines, f"memory_{kind}_bytes")) < high
    nanochat = of(lines, "memory_allocated_bytes", "nanochat")
    assert round(at_first(nanochat), 2) == 0.46
    assert mean(line.error for line in nanochat) < 0.05
    assert all(line.signed_error < 0 for line in of(lines, "memory_device_bytes", "gpt2"))


def test_cards_that_were_refused_take_after_a_relative(blind):
    records, lines, refused = blind
    assert not refused
    runs, before = {record.row: record.run for record in records}, first_predictions()
    later = [x for x in of(lines, "time") if (x.row, x.quantity) not in before and "H800" not in x.group]
    alone = [x for x in later if runs[x.row].cluster.num_devices == 1]
    assert len(alone) == 12
    assert round(mean(x.error for x in alone), 2) == 0.09
    assert round(max(x.error for x in alone), 2) == 0.19
    pairs = {card: of(lines, "time", f"fsdp_qlora {card}") for card in ("RTX-4090", "RTX-3090")}
    assert len(pairs["RTX-4090"]) == 11
    assert round(mean(x.error for x in pairs["RTX-4090"]), 2) == 0.04
    assert min(slower(x) for x in pairs["RTX-3090"]) == pytest.approx(-0.56, abs=0.01)
    (eight,) = [x for x in of(lines, "time", "whyNLP DDP RTX-A6000") if runs[x.row].cluster.num_devices == 8]
    assert abs(slower(eight)) < 0.06
    fast = replace(runs[eight.row].cluster, intra=catalogue.link("pcie-4"))
    record = next(record for record in records if record.row == eight.row)
    (line,) = time_lines([replace(record, run=replace(record.run, cluster=fast))])[0]
    assert slower(line) == pytest.approx(-0.14, abs=0.01)


@pytest.mark.parametrize(("kind", "rows", "least"), [("time", 201, 0.75), ("memory", 199, 0.7)])
def test_the_doubt_holds_most_sources_that_say_nothing_about_it(kind, rows, least):
    """As far as intervals are read off blind rows, each source is judged by what the others say."""
    described = bars(kind)
    some = blind_sample(kind, described)
    assert len(some.residuals) == rows  # predict/interval.py says so
    assert set(some.names) | {DOUBT} == set(described.wider)
    assert some.doubts[:, some.names.index("stack")].all()
    inside_ = inside_without_source(some, described)
    by_source = [inside_[some.sources == name].mean() for name in set(some.sources)]
    assert least < mean(by_source) < 0.9
    assert described.wider[DOUBT] == pytest.approx(widening(some, described), rel=1e-3)
    narrow = times_as_wide(some, described) <= 1
    assert narrow.mean() < 0.5  # without the doubt


def test_a_source_says_nothing_about_its_own_doubt():
    described = bars("time")
    some = blind_sample("time", described)
    mine = some.sources == "blind: lucie"
    residuals = np.where(mine, 100 * some.residuals, some.residuals)
    other = inside_without_source(replace(some, residuals=residuals), described)
    assert not other[mine].any()
    assert inside_without_source(some, described)[mine].all()


def test_a_rate_that_is_too_low_is_a_step_that_is_too_slow(blind):
    _, lines, _ = blind
    rate = next(line for line in lines if line.quantity.startswith("tokens") and line.signed_error < 0)
    assert slower(rate) > 0
