"""Rows that no constant has seen: all are read, none is fitted on, and the page about them holds."""

import csv

import pytest

from benchmarks.blind_rows import FIRST, PAGE, ROWS, first, kind_of, page, predicted, undescribed
from workshop.facts.published import FOLDER
from workshop.published.canonical_reader import read_runs
from workshop.published.left_out import read
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
    assert set(first()) <= {(line.row, line.quantity) for line in lines}
    # what was refused at first has a prediction now: adapters with several targets
    later = {line.row for line in lines if (line.row, line.quantity) not in first()}
    assert later <= set(range(2, 310))


def test_the_page_is_what_comes_of_them(blind):
    assert PAGE.read_text(encoding="utf-8") == page(*blind)


def test_what_the_page_says_in_words(blind):
    _, lines, _ = blind
    time = of(lines, "time")
    assert 0.305 < at_first(time) < 0.315
    assert mean(line.error for line in time) < 0.8 * at_first(time)
    for kind, low, high in (("allocated", 0.1, 0.2), ("reserved", 0.1, 0.12), ("device", 0.2, 0.24)):
        assert low < at_first(of(lines, f"memory_{kind}_bytes")) < high
    nanochat = of(lines, "memory_allocated_bytes", "nanochat")
    assert at_first(nanochat) > 0.4
    assert mean(line.error for line in nanochat) < 0.05
    lucie = of(lines, "time", "lucie")
    assert round(at_first(lucie), 2) == 0.35  # lesson 64 says so
    assert round(mean(line.error for line in lucie), 2) == 0.08


def test_an_interval_for_these_programs_would_have_to_be_much_wider(blind):
    records, lines, _ = blind
    left_out = read(read_folder(FOLDER)[0])
    for kind, least in (("time", 3), ("memory", 2)):
        factor, held = undescribed(kind, records, lines, left_out)
        assert factor > least
        assert 0.65 < held < 0.85
