"""An interval in the unit of the measurement: of a rate, the longest step is its lower end."""

from dataclasses import replace
from pathlib import Path

import pytest

from workshop.published.own_runs import compare, text
from workshop.published.predicted import interval_of
from workshop.published.record import ALLOCATED, DEVICE, SECONDS, TOKENS
from workshop.published.tables import read_table

TABLES = Path(__file__).parents[2] / "data" / "published"


@pytest.fixture(scope="module")
def record():
    return read_table(TABLES / "nvidia_nemo_2407_h100_fp8.csv")[0][0]


def test_a_rate_is_turned_over(record):
    seconds, tokens = interval_of(record, SECONDS, 2.0), interval_of(record, TOKENS, 100.0)
    assert tokens.lower == pytest.approx(100 * 2.0 / seconds.upper)
    assert tokens.upper == pytest.approx(100 * 2.0 / seconds.lower)


def test_device_bytes_are_known_less_well_than_allocated_ones(record):
    kept, taken = (interval_of(record, name, 1e9) for name in (ALLOCATED, DEVICE))
    assert taken.upper - taken.lower >= kept.upper - kept.lower > 0


def test_an_unknown_stack_widens(record):
    strange = replace(record, software=replace(record.software, name="nobody's"))
    assert interval_of(strange, SECONDS, 1.0).upper > interval_of(record, SECONDS, 1.0).upper


def test_your_own_rows_say_whether_they_lie_inside(tmp_path):
    file = tmp_path / "own.csv"
    columns = "model,seq_len,micro_batch_sequences,device,num_devices,precision,stack,data,zero_stage,seconds_per_step"
    row = "llama-3-8b,4096,1,H100,8,fsdp-bf16,torchtitan,8,3,{}"
    file.write_text("\n".join([columns, row.format(1.0)]))
    predicted = compare(file)["rows"][0]["predicted"]
    file.write_text("\n".join([columns, row.format(predicted), row.format(2 * predicted)]))
    found = compare(file)
    assert [x["inside"] for x in found["rows"]] == [True, False]
    assert text(found).count("outside its interval") == 1
