"""Rows that no constant has seen: all are read, none is fitted on, and the page about them holds."""

import csv

import pytest

from benchmarks.blind_rows import FIRST, PAGE, ROWS, first, inside, kind_of, page, predicted, slower, stretch
from workshop.facts.published import FOLDER
from workshop.published.canonical_reader import read_runs
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
    before = first()
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
        assert len(list(csv.DictReader(file))) == len(first())  # none twice
    later = {line for line in lines if (line.row, line.quantity) not in first()}
    assert set(first()) <= {(line.row, line.quantity) for line in lines}
    assert len(later) == 5
    assert all("H800" in line.group and line.kind == "time" for line in later)
    assert max(line.signed_error for line in later) == pytest.approx(0.8, abs=0.01)


def test_the_page_is_what_comes_of_them(blind):
    assert PAGE.read_text(encoding="utf-8") == page(*blind)


def test_what_the_page_says_of_time(blind):
    records, lines, _ = blind
    time = [line for line in of(lines, "time") if (line.row, line.quantity) in first()]
    before, runs = first(), {record.row: record for record in records}
    off = sorted(abs(before[x.row, x.quantity] / x.measured - 1) for x in time)
    assert len(off) == 210
    assert round(mean(off), 2) == 0.31
    assert round(off[len(off) // 2], 2) == 0.21
    held = sum(inside(x, runs[x.row], before[x.row, x.quantity]) for x in time)
    assert 0.3 < held / len(time) < 0.35  # one in three
    assert mean(line.error for line in time) < 0.8 * mean(off)
    lucie = of(lines, "time", "lucie")
    assert round(at_first(lucie), 2) == 0.35  # lesson 64 says so
    assert round(mean(line.error for line in lucie), 2) == 0.08
    llmsft = of(lines, "time", "llmsft A100")
    assert all(5.5 < x.measured / before[x.row, x.quantity] < 7.5 for x in llmsft)
    assert all(1.7 < x.measured / x.predicted < 2.2 for x in llmsft)
    small = [of(lines, "time", name) for name in ("gpt2", "nanochat", "llm.c", "flash-attention")]
    slow = [slower(line) for some in small for line in some]
    assert sum(0.1 < one < 0.55 for one in slow) > 0.85 * len(slow)
    (nano,) = of(lines, "time", "nanoGPT")
    assert nano.signed_error < before[nano.row, nano.quantity] / nano.measured - 1 < 0


def test_what_the_page_says_of_memory(blind):
    _, lines, _ = blind
    for kind, low, high in (("allocated", 0.15, 0.17), ("reserved", 0.105, 0.12), ("device", 0.22, 0.235)):
        assert low < at_first(of(lines, f"memory_{kind}_bytes")) < high
    nanochat = of(lines, "memory_allocated_bytes", "nanochat")
    assert round(at_first(nanochat), 2) == 0.46
    assert mean(line.error for line in nanochat) < 0.05
    assert all(line.signed_error < 0 for line in of(lines, "memory_device_bytes", "gpt2"))


def test_intervals_would_have_to_be_wider(blind):
    records, lines, _ = blind
    assert 3 < stretch("time", records, lines) < 6  # README and predict/interval.py say so
    assert 5 < stretch("memory", records, lines) < 8


def test_a_rate_that_is_too_low_is_a_step_that_is_too_slow(blind):
    _, lines, _ = blind
    rate = next(line for line in lines if line.quantity.startswith("tokens") and line.signed_error < 0)
    assert slower(rate) > 0
