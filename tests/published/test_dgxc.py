"""DGX Cloud's recipes: numbers that contradict each other are not in the tables, disturbed runs are not predicted."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

from workshop.predict.case import NotPredictable
from workshop.published.record import SECONDS
from workshop.published.sources.dgxc import SOURCE, measured_run
from workshop.published.tables import READERS, read_row

TABLES = Path(__file__).parents[2] / "data" / "published"
NVIDIA, BRIDGE, TOGETHER = SOURCE.tables


def rows_of(table):
    with (TABLES / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def count_of(row, seconds):
    """FLOPs of a token, in 10^12, that seconds and TFLOP/s imply."""
    tokens = int(row["global_batch_size_seqs"]) * int(row["seq_len_tokens"])
    return float(row["model_tflops_per_gpu"]) * int(row["gpus"]) * float(row[seconds]) / tokens


def counts():
    """What logs with both say, by what decides it."""
    found = defaultdict(list)
    for row in rows_of(TOGETHER):
        if row["step_seconds"] and row["model_tflops_per_gpu"]:
            found[row["model"], row["framework"], row["seq_len_tokens"]].append(count_of(row, "step_seconds"))
    return found


def test_seconds_and_tflops_agree_wherever_both_are_given():
    """A wrong batch would be off by a factor."""
    compared = 0
    for key, values in counts().items():
        for value in values:
            assert value == pytest.approx(median(values), rel=0.005), key
        compared += len(values)
    assert compared > 70


def test_seconds_that_follow_from_tflops_do():
    told, derived = counts(), 0
    for row in rows_of(TOGETHER):
        assert bool(row["step_seconds"]) != bool(row["step_seconds_from_tflops"])
        if row["step_seconds_from_tflops"]:
            expected = median(told[row["model"], row["framework"], row["seq_len_tokens"]])
            assert count_of(row, "step_seconds_from_tflops") == pytest.approx(expected, rel=0.001)
            derived += 1
    assert derived > 70


def test_seconds_and_throughput_of_nvidias_tables_agree():
    for row in rows_of(NVIDIA):
        tokens = int(row["global_batch_size_seqs"]) * int(row["seq_len_tokens"])
        assert tokens / float(row["step_seconds"]) == pytest.approx(float(row["tokens_per_s"]), rel=0.005)


def test_a_disturbed_run_is_not_predicted_and_says_why():
    rows = [row for row in rows_of(TOGETHER) if row["disturbed"]]
    assert rows
    for row in rows:
        with pytest.raises(NotPredictable, match="disturbed: the report"):
            measured_run(row)
    assert all(row["disturbed"] for row in rows_of(TOGETHER) if "slinky" in row["cluster"])


@pytest.mark.parametrize("table", SOURCE.tables)
def test_every_other_row_is_read_and_cited(table):
    for row in rows_of(table):
        assert " @ " in row["source"]
        assert " @ " in row["recipe"]
        if not row.get("disturbed"):
            assert read_row(SOURCE, row).measured[SECONDS] > 0


def test_the_recipe_decides_the_stack():
    rows = rows_of(TOGETHER)
    grok = next(row for row in rows if row["model"] == "Grok-1" and row["tp_overlap"] == "no")
    whole = next(row for row in rows if row["model"] == "LLAMA3_8B")
    apart = measured_run(grok).software
    assert (apart.overlap_tensor, apart.overlap_input_gradient) == (0, True)
    assert measured_run(grok | {"tp_overlap": "yes"}).software.overlap_tensor == 0.7
    assert (measured_run(grok).software.name, measured_run(whole).software.name) == (
        "nemo",
        "megatron-bridge",
    )
    assert measured_run(whole).software.captured
    assert not measured_run(grok).software.captured
    deep = next(row for row in rows if row["model"] == "DeepSeekV3")
    assert measured_run(deep).run.layout.recompute_modules == ("mla_up_proj",)
    assert measured_run(deep | {"recompute_modules": "full"}).run.layout.recompute == "full"
    assert measured_run(deep).run == measured_run(deep | {"job": "1", "date": "", "cluster": "other"}).run
    with pytest.raises(NotPredictable, match="megatron-bridge"):
        measured_run(deep | {"framework": "megatron"})


def test_nvfp4_has_no_buffers_for_tensor_parallelism():
    for table in (TOGETHER, "nvidia_megatron_bridge_performance"):
        rows = [row for row in rows_of(table) if "NVFP4" in row["precision"] and "LLAMA" in row["model"]]
        rows = [row for row in rows if not row.get("disturbed")]
        assert rows
        for row in rows:
            used = read_row(READERS[table], row).software
            assert (used.overlap_tensor, used.overlap_input_gradient) == (0, True)


def test_nemotron_4_15b_ran_with_256_words():
    rows = [row for row in rows_of(TOGETHER) if not row["disturbed"]]
    words = {
        name: {measured_run(row).run.model.vocab_size for row in rows if row["model"] == name}
        for name in ("Nemotron 15B", "Nemotron 340B")
    }
    assert words == {"Nemotron 15B": {256}, "Nemotron 340B": {256_000}}


def test_weights_of_current_scaling_are_gathered_in_8_bits():
    found = {
        row["precision"]: measured_run(row).software.gathers_quantized
        for row in rows_of(TOGETHER)
        if not row["disturbed"]
    }
    assert found == {"BF16": False, "FP8-CS": True, "FP8-MX": False, "NVFP4": False}
