"""What one source, and two, measured of one configuration."""

import csv

import pytest

from workshop.facts.published import FOLDER
from workshop.published.measured_twice import floors, least_error, measured_twice, seconds_of
from workshop.published.record import MODEL, SECONDS, TOKENS
from workshop.published.tables import read_folder

BRIDGE, TOGETHER = "nvidia_megatron_bridge_performance", "together_dgxc_benchmarking"


@pytest.fixture(scope="module")
def found():
    return measured_twice(read_folder(FOLDER)[0])


def rows_of(table, **wanted):
    with (FOLDER / f"{table}.csv").open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if wanted.items() <= row.items()]


def test_the_seconds_are_those_of_the_tables(found):
    (one,) = [each for each in found if each.words.startswith("qwen3-30b-a3b")]
    assert one.sources == (BRIDGE, TOGETHER)
    cut = {"model": "Qwen3_30B_a3B", "system": "DGX-B200", "gpus": "8", "micro_batch_size_seqs": "1"}
    tokens = [
        float(row["tokens_per_s_per_gpu"]) for row in rows_of(BRIDGE, **cut) if "MX" in row["precision"]
    ]
    assert sorted(one.seconds[0]) == pytest.approx(sorted(512 * 4096 / 8 / each for each in tokens))
    assert len(one.seconds[1]) == 2
    assert one.ratio == pytest.approx((sum(one.seconds[1]) / 2) / (sum(one.seconds[0]) / len(one.seconds[0])))


def test_a_configuration_is_one_of_one_format_and_one_batch(found):
    for one in found:
        assert one.sources[0] != one.sources[1]
        assert "megatron-" in one.words
    assert len({one.words for one in found}) == len(found) >= 4


def test_a_rate_of_flops_is_not_turned_into_seconds():
    records = read_folder(FOLDER)[0]
    ones = [one for record in records for one in record.observations((SECONDS, TOKENS, MODEL))]
    assert {one.quantity for one in ones if seconds_of(one) is None} == {MODEL}


def test_no_number_is_nearer_than_the_best_of_those_measured():
    measured = [37.8, 41.0, 64.8]
    least = least_error(measured)
    for predicted in (30.0, 37.8, 38.5, 40.9, 41.0, 43.0, 50.0, 64.8):
        assert sum(abs(predicted / each - 1) for each in measured) / 3 >= least
    assert least_error([5.0]) == 0


def test_a_source_that_repeats_has_a_floor():
    records = read_folder(FOLDER)[0]
    found = {one.source: one for one in floors(records)}
    assert 0.01 < found[TOGETHER].least < 0.03
    for one in found.values():
        assert 0 < one.repeated <= one.configurations
        assert one.apart > 1
        assert 0 <= one.least < one.apart - 1
    assert "vtrain" not in found  # each once
