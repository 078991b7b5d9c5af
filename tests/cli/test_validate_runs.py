"""`workshop validate --runs` and `--assumptions`: a centre's own runs beside their predictions."""

from __future__ import annotations

import csv
import json

import pytest

from workshop.cli import main
from workshop.facts.published import FOLDER

OWN = {
    "name": "8b",
    "model": "llama-3.1-8b",
    "seq_len": "8192",
    "micro_batch_sequences": "1",
    "device": "H100",
    "num_devices": "8",
    "data": "8",
    "zero_stage": "3",
    "precision": "fsdp-bf16",
    "recompute": "full",
    "stack": "torchtitan-compile",
    "seconds_per_step": "1.4",
    "memory_reserved_GB": "40.5",
    "out_of_memory": "",
    "adapter": "",
}


@pytest.fixture
def runs(tmp_path):
    def write(*rows):
        path = tmp_path / "runs.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(OWN))
            writer.writeheader()
            writer.writerows({**OWN, **row} for row in rows)
        return str(path)

    return write


def test_prediction_stands_beside_measurement(runs, capsys):
    assert main(["validate", "--runs", runs({}), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    by_quantity = {row["quantity"]: row for row in found["rows"]}
    assert set(by_quantity) == {"seconds_per_step", "memory_reserved_bytes", "memory_fits"}
    seconds = by_quantity["seconds_per_step"]
    assert seconds["measured"] == 1.4
    assert seconds["signed_error"] == pytest.approx(seconds["predicted"] / 1.4 - 1)
    assert 0.3 < seconds["predicted"] < 5
    assert by_quantity["memory_fits"]["measured"] is True


def test_what_cannot_be_predicted_says_why(runs, capsys):
    rows = runs(
        {"device": "H1000"},
        {"model": "llama-3.1-8b num_encoder_layers=4"},
        {"seconds_per_step": "", "memory_reserved_GB": ""},
        {},
    )
    assert main(["validate", "--runs", rows]) == 0
    out = capsys.readouterr().out
    assert "line 2 not predicted: device 'H1000' is not known" in out
    assert "line 3 not predicted: " in out
    assert "line 4 not predicted: nothing was measured" in out
    assert "seconds_per_step: 1 rows" in out


def test_a_run_that_failed_is_a_verdict(runs, capsys):
    failed = {"seconds_per_step": "", "memory_reserved_GB": "", "out_of_memory": "yes", "num_devices": "8"}
    assert main(["validate", "--runs", runs({**failed, "model": "llama-3.1-405b"}), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["quantity"], row["measured"], row["predicted"]) == ("memory_fits", False, False)
    assert main(["validate", "--runs", runs(failed)]) == 0
    assert "wrong" in capsys.readouterr().out


def test_exit_codes(runs, tmp_path, capsys):
    assert main(["validate", "--runs", runs({"device": "X"})]) == 1
    assert main(["validate", "--runs", str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err
    assert main(["validate", "--runs", runs({}), "--held"]) == 2


def test_assumptions_are_listed_by_source(runs, capsys):
    assert main(["validate", "--assumptions", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"table", "column", "assumed", "rows"} == set(found[0])
    micro = [
        x
        for x in found
        if (x["table"], x["column"]) == ("megatron_core_h100_weak_scaling", "micro_batch_sequences")
    ]
    assert micro[0]["assumed"].startswith("4, the fastest that is predicted to fit")
    assert main(["validate", "--runs", runs({}), "--assumptions"]) == 0
    assert "assumed_tensor" in capsys.readouterr().out


def test_the_tables_are_written_in_these_columns(tmp_path, capsys):
    name = "megatron_sc21_table1_a100.csv"
    (tmp_path / name).write_text((FOLDER / name).read_text("utf-8"), "utf-8")
    written = tmp_path / "canonical.csv"
    assert main(["validate", "--tables", str(tmp_path), "--canonical", str(written)]) == 0
    assert "7 rows" in capsys.readouterr().out
    assert main(["validate", "--runs", str(written)]) == 0
    assert "hardware_tflops_per_device: 7 rows" in capsys.readouterr().out
