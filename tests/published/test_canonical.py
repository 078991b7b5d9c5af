"""The canonical columns lose nothing, refuse what they cannot read, and hold the open tables as they are today."""

from __future__ import annotations

import csv
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from workshop.facts.layout import Layout
from workshop.facts.published import FOLDER
from workshop.facts.run import Run
from workshop.predict.case import NotPredictable
from workshop.published.canonical import as_csv, row_of
from workshop.published.canonical_reader import read_runs, record_of
from workshop.published.columns import ASSUMED, COLUMNS, REQUIRED
from workshop.published.predicted import memory_value, predicted_memory, time_predictions
from workshop.published.record import MEMORIES
from workshop.published.tables import read_folder

FILE = FOLDER / "canonical.csv"
OWN = {
    "name": "mine",
    "model": "llama-3.1-8b",
    "seq_len": "8192",
    "global_batch_sequences": "128",
    "micro_batch_sequences": "1",
    "device": "H100",
    "num_devices": "64",
    "tensor": "2",
    "sequence_parallel": "yes",
    "data": "32",
    "zero_stage": "3",
    "precision": "fsdp-bf16",
    "recompute": "full",
    "stack": "torchtitan-compile",
    "tokens_per_second_per_device": "7000",
    "memory_reserved_GB": "40.5",
}


@pytest.fixture(scope="module")
def native():
    return read_folder(FOLDER)[0]


@pytest.fixture(scope="module")
def back():
    return read_runs(FILE)


def test_the_file_is_what_the_tables_say_today(native):
    """Else: workshop validate --canonical data/published/canonical.csv"""
    assert FILE.read_text("utf-8") == as_csv(native)


def test_every_row_is_read_back_as_the_same_run(native, back):
    records, skipped = back
    assert not skipped
    assert len(records) == len(native)
    for one, other in zip(native, records, strict=True):
        for what in (
            "layout",
            "micro_batch",
            "seq_len",
            "accumulation",
            "adapter",
            "implementation",
            "target_len",
        ):
            assert getattr(one.run, what) == getattr(other.run, what), (one.table, one.row, what)
        assert replace(one.run.model, name="", source="") == replace(other.run.model, name="", source="")
        assert (one.software, one.stage, one.group) == (other.software, other.stage, other.group)
        assert dict(one.quantities) == pytest.approx(dict(other.quantities), rel=1e-12)
        assert {column for column, _ in one.assumed} == {column for column, _ in other.assumed}


def test_both_ways_predict_alike(native, back):
    answers = [
        {(one.table, i, one.quantity): value for i, (one, value) in enumerate(time_predictions(records)[0])}
        for records in (native, back[0])
    ]
    assert len(answers[0]) > 1400
    assert list(answers[0]) == list(answers[1])
    assert np.allclose(list(answers[0].values()), list(answers[1].values()), rtol=1e-12)
    compared = 0
    for one, other in zip(native, back[0], strict=True):
        for mine, theirs in zip(one.observations(MEMORIES), other.observations(MEMORIES), strict=True):
            expected = memory_value(mine, predicted_memory(one))
            assert memory_value(theirs, predicted_memory(other)) == pytest.approx(expected, rel=1e-12)
            compared += 1
    assert compared > 550


CHANGED = {
    "replicate": {"data": "32 shard=16", "zero_stage": "1"},
    "zero": {"zero_stage": "1"},
    "tensor": {"tensor": "4", "data": "16"},
    "sequence_parallel": {"sequence_parallel": "no"},
    "pipeline": {"pipeline": "2", "data": "16"},
    "schedule": {"pipeline": "2", "data": "16", "schedule": "zb-h1"},
    "virtual_stages": {"pipeline": "2", "data": "16", "virtual_stages": "4"},
    "context": {"context": "2", "data": "16"},
    "context_method": {"context": "2 method=ulysses", "data": "16"},
    "expert": {"model": "mixtral-8x7b", "expert": "8"},
    "expert_tensor": {"model": "mixtral-8x7b", "expert": "8 tensor=1"},
    "recompute": {"recompute": "none"},
    "recompute_every": {"recompute": "full every=2"},
    "recompute_layers": {"recompute": "full layers=4"},
    "recompute_modules": {"recompute": "selective modules=core_attn+mlp"},
    "precision": {"precision": "megatron-fp8"},
    "offload": {"offload": "optimizer"},
    "first_stage_layers": {"pipeline": "2", "data": "16", "schedule": "1f1b first=15"},
    "last_stage_layers": {"pipeline": "2", "data": "16", "schedule": "1f1b last=15"},
    "embedding_in_stages": {"pipeline": "2", "data": "16", "schedule": "1f1b ends=yes"},
    "micro_batch": {"micro_batch_sequences": "2"},
    "seq_len": {"seq_len": "4096"},
    "accumulation": {"global_batch_sequences": "256"},
    "optimizer": {"optimizer": "adamw-8bit"},
    "adapter": {"adapter": "lora targets=q+k base_bits=4.127", "adapter_rank": "16"},
    "document_len": {"seq_len": "8192 document=1024"},
    "target_len": {"model": "llama-3.1-8b num_encoder_layers=4", "seq_len": "8192 target=512"},
    "implementation": {
        "stack": "torchtitan-compile memory.loss_chunks=8",
        "attention": "flash-3 kept=flash-copy",
    },
}
"""Field of Run or Layout -> cells that change it."""


@pytest.mark.parametrize("field", CHANGED)
def test_a_change_of_any_field_is_written_and_read_back(field):
    base, changed = record_of(OWN), record_of({**OWN, **CHANGED[field]})
    of = "layout" if hasattr(base.run.layout, field) else "run"
    before, after = (record.run.layout if of == "layout" else record.run for record in (base, changed))
    assert getattr(before, field) != getattr(after, field)
    again = record_of(row_of(changed))
    assert (again.run.layout, again.run.adapter) == (changed.run.layout, changed.run.adapter)
    assert replace(again.run, cluster=changed.run.cluster) == changed.run
    assert again.software == changed.software


def test_no_field_of_a_run_is_without_a_column():
    """A field that comes later needs a column, or a reader would lose it."""
    known = {*CHANGED, "model", "cluster", "layout", "global_batch", "shard"}
    assert {f.name for kind in (Run, Layout) for f in fields(kind)} == known


def test_every_column_is_explained_and_every_assumption_is_of_a_column(native):
    assert all(len(words) > 8 for words in COLUMNS.values())
    assert {column for record in native for column, _ in record.assumed} <= set(COLUMNS)
    assert set(row_of(native[0])) <= {*COLUMNS, *(ASSUMED + column for column in COLUMNS)}


def test_what_is_empty_is_assumed_and_says_so():
    record = record_of(OWN)
    assumed = dict(record.assumed)
    assert record.run.layout.world_size == 64
    assert assumed["pipeline"] == "1: the cell is empty"
    assert assumed["optimizer"].startswith("adamw")
    assert "tensor" not in assumed
    fewer = record_of({k: v for k, v in OWN.items() if k not in ("data", "global_batch_sequences")})
    assert fewer.run.layout == record.run.layout
    assert {"data", "global_batch_sequences"} <= set(dict(fewer.assumed))


@pytest.mark.parametrize("column", REQUIRED)
def test_without_these_nothing_is_predicted(column):
    with pytest.raises(NotPredictable, match=f"{column} is empty"):
        record_of({**OWN, column: " "})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "llama-9"}, "'llama-9' is not in the catalogue.*num_layers, hidden_size.*llama-3.1-8b"),
        ({"model": "llama-3.1-8b speed=9"}, "model is .*'speed=9' is no option.*norm="),
        ({"device": "H1000"}, "device 'H1000' is not known; did you mean 'h100'"),
        ({"stack": "torchtitan-compil"}, "did you mean 'torchtitan-compile'"),
        ({"precision": "fsdp-bf15"}, "unknown precision 'fsdp-bf15'.*fsdp-bf16"),
        ({"recompute": "ful"}, "unknown recompute 'ful'"),
        ({"optimizer": "adamx"}, "unknown optimizer 'adamx'"),
        ({"attention": "flash-9"}, "attention is 'flash-9' .*flash-3"),
        ({"tensor": "2.5"}, "tensor is '2.5', not a whole number"),
        ({"tensor": "4"}, "tensor 4 .*is 128, but num_devices is 64"),
        ({"tensor": "-2"}, "tensor is -2: give at least 1"),
        ({"tensor": "0", "data": ""}, "tensor is 0: give at least 1"),
        ({"micro_batch_sequences": "0"}, "micro_batch must be a whole number of at least 1, not 0"),
        ({"global_batch_sequences": "0"}, "global_batch_sequences is 0: give at least 1"),
        ({"seq_len": "-5"}, "seq_len must be"),
        ({"sequence_parallel": "maybe"}, "sequence_parallel is 'maybe', not yes or no"),
        ({"seconds_per_step": "fast"}, "seconds_per_step is 'fast', not a number"),
        ({"seconds_per_step": "nan"}, "seconds_per_step is 'nan', not a number"),
        ({"seconds_per_step": "0"}, "seconds_per_step is 0.0: a measurement is above 0"),
        ({"memory_reserved_GB": "-3"}, "memory_reserved is"),
        ({"mfu": "43"}, "mfu is 43.0: give a share from 0 to 1"),
        ({"global_batch_sequences": "100"}, "global_batch = 100 does not divide"),
        ({"network_gbps_per_device": "0"}, "network_gbps_per_device is 0.0"),
        ({"data": "32 shard=5"}, "shard 5 does not divide 32"),
        ({"num_devices": "0"}, "num_devices is 0: give at least 1"),
        ({"devices_per_node": "0"}, "devices_per_node must be"),
        ({"flops_counted": "all"}, "flops_counted is 'all'"),
    ],
)
def test_a_refusal_names_the_column_and_the_value(change, words):
    with pytest.raises(NotPredictable, match=words):
        record_of({**OWN, **change})


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty: its first line names the columns"),
        (b"name,modle\n", "unknown column 'modle'; did you mean 'model'"),
        (b"model,model\n", "the column 'model' twice"),
        (b"name,model\n", "has no column 'seq_len'"),
        (b"\xff\xfe\x00", "not a CSV file in UTF-8"),
    ],
)
def test_a_file_that_is_no_such_table_is_refused(tmp_path, content, words):
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_runs(path)


def test_one_bad_row_does_not_hide_the_others(tmp_path):
    path = write(tmp_path / "runs.csv", [OWN, {**OWN, "device": "X"}, OWN])
    with path.open("a") as file:
        file.write(",".join(["1"] * 40) + "\n")
    records, skipped = read_runs(path)
    assert [record.row for record in records] == [2, 4]
    assert [left.row for left in skipped] == [3, 5]
    assert "more cells than the header" in skipped[1].reason


def test_a_context_method_is_read_and_written():
    cells = {**OWN, "tensor": "1", "sequence_parallel": "no", "context": "2 method=ulysses"}
    record = record_of(cells)
    assert (record.run.layout.context, record.run.layout.context_method) == (2, "ulysses")
    assert row_of(record)["context"] == "2 method=ulysses"
    assert row_of(record_of({**cells, "context": "2"}))["context"] == "2"
    with pytest.raises(NotPredictable, match="context method.*ulises.*ulysses"):
        record_of({**cells, "context": "2 method=ulises"})
    with pytest.raises(
        NotPredictable, match="stack 'megatron-cor' is not known; did you mean 'megatron-core'"
    ):
        record_of({**cells, "stack": "megatron-cor"})
