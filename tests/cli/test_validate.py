"""`workshop validate`: keys, exit codes, the tables of another folder."""

from __future__ import annotations

import json
import shutil

import pytest

from workshop.cli import main
from workshop.facts.published import FOLDER

KEYS = {
    "table", "group", "quantity", "rows", "mean_error", "median_error", "p90_error", "worst_error", "spearman",
    "skipped",
}  # fmt: skip


def test_json_has_the_keys_and_a_line_for_all_and_each_group(capsys):
    assert main(["validate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(set(record) >= KEYS for record in found)
    for table in {record["table"] for record in found}:
        mine = [record for record in found if record["table"] == table]
        for quantity in {record["quantity"] for record in mine if record["rows"]}:
            whole, *groups = [record for record in mine if record["quantity"] == quantity]
            assert whole["group"] == "all"
            assert whole["rows"] == sum(record["rows"] for record in groups)
    assert {"seconds_per_step", "memory_allocated_bytes"} <= {record["quantity"] for record in found}


def test_another_folder_gives_its_own_rows(tmp_path, capsys):
    name = "megatron_sc21_table1_a100.csv"
    lines = (FOLDER / name).read_text("utf-8").splitlines(keepends=True)
    (tmp_path / name).write_text("".join(lines[:4]), "utf-8")
    assert main(["validate", "--tables", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {record["table"] for record in found} == {"megatron_sc21_table1_a100"}
    assert found[0]["rows"] + found[0]["skipped"] == 3


def test_text_names_the_reason_of_what_was_skipped(capsys):
    assert main(["validate", "--quantity", "memory"]) == 0
    said = capsys.readouterr().out
    assert "(memory_allocated_bytes)" in said
    assert "skipped" in said


def test_tables_of_which_nothing_can_be_predicted_have_exit_code_1(tmp_path, capsys):
    name = "megatron_sc21_table1_a100.csv"
    head = (FOLDER / name).read_text("utf-8").splitlines()[0]
    (tmp_path / name).write_text(head + "\n" + "," * head.count(",") + "\n", "utf-8")
    assert main(["validate", "--tables", str(tmp_path)]) == 1
    assert "skipped 1" in capsys.readouterr().out


@pytest.mark.parametrize("empty", [True, False])
def test_no_folder_or_no_table_has_exit_code_2(tmp_path, capsys, empty):
    folder = tmp_path if empty else tmp_path / "none"
    shutil.copy(__file__, tmp_path)
    assert main(["validate", "--tables", str(folder)]) == 2
    assert ("no known table" if empty else "no folder") in capsys.readouterr().err


def test_verdicts_are_rows_too(capsys):
    assert main(["validate", "--json", "--quantity", "memory"]) == 0
    records = [r for r in json.loads(capsys.readouterr().out) if r["quantity"] == "memory_fits"]
    whole = [r for r in records if r["group"] == "all"]
    assert sum(r["rows"] for r in whole) > 500
    assert sum(r["rows"] * r["mean_error"] for r in whole) <= 0.05 * sum(r["rows"] for r in whole)
    assert sum(r["rows"] for r in records if r["group"] == "ran out of memory") == 3
