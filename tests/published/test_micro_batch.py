"""A micro-batch that a table of tuned runs leaves open: the fastest that fits, whatever was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workshop.facts.layout import Layout
from workshop.facts.published import FOLDER
from workshop.facts.run import Run
from workshop.facts.stack import stack
from workshop.predict.case import setting_of
from workshop.predict.layouts import Layouts
from workshop.predict.memory import predict_memory
from workshop.predict.time.step import predict_steps
from workshop.published.micro_batch import ASSUMED, fastest_that_fits
from workshop.published.tables import read_folder

USED = stack("megatron-core")


def run(devices: int = 8, sequences: int = 8, **layout: int) -> Run:
    cut = Layout(**{"shard": devices, "zero": 1, "precision": "megatron-bf16", **layout})
    return Run(
        "llama-3-8b",
        f"{devices}xH100",
        cut,
        1,
        8192,
        accumulation=sequences,
        implementation=USED.implementation,
    )


def seconds(one: Run) -> float:
    return float(predict_steps(setting_of(one, USED.software), Layouts.of_runs([one])).seconds[0])


@pytest.mark.parametrize("layout", [{"shard": 2, "tensor": 4, "sequence_parallel": True}, {}])
def test_it_is_the_shortest_step_of_those_that_fit(layout: dict[str, int]) -> None:
    given = run(**layout)
    found = fastest_that_fits(given, USED.software)
    assert found.micro_batch * found.accumulation == 8
    every = [replace(given, micro_batch=m, accumulation=8 // m) for m in (1, 2, 4, 8)]
    fitting = [one for one in every if predict_memory(one).fits] or every[:1]
    assert seconds(found) == min(map(seconds, fitting))


def test_where_nothing_fits_it_is_one() -> None:
    large = replace(run(shard=8), seq_len=131072)
    assert not predict_memory(large).fits
    assert fastest_that_fits(large, USED.software) == large


def test_a_schedule_that_needs_more_micro_batches_keeps_them() -> None:
    cut = run(sequences=8, shard=1, tensor=2, sequence_parallel=True, pipeline=4, virtual_stages=8)
    assert fastest_that_fits(cut, USED.software).accumulation % 4 == 0


def test_megatron_cores_rows_say_what_was_taken() -> None:
    records = [r for r in read_folder(FOLDER)[0] if r.table == "megatron_core_h100_weak_scaling"]
    taken = {record.name: record.run.micro_batch for record in records}
    assert taken == {"1.7B": 4, "7.1B": 4, "16B": 4, "32B": 4, "70B": 4}
    for record in records:
        assert dict(record.assumed)["micro_batch_sequences"] == f"{record.run.micro_batch}, {ASSUMED}"
