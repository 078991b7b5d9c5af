"""The report's arithmetic, what readers refuse, and that published times are predicted as well as they were."""

import json
from pathlib import Path

import numpy as np
import pytest

from workshop.predict.validate.cases import SECONDS
from workshop.predict.validate.fit import held_out, minimise
from workshop.predict.validate.report import main_validate, records, spearman, summary
from workshop.predict.validate.rows import CannotPredict
from workshop.predict.validate.tables import NOT_READ, READERS
from workshop.predict.validate.time import Line, lines_of, time_lines

TABLES = Path(__file__).parents[2] / "data" / "published"
KEYS = {"table", "group", "quantity", "rows", "mean_error", "median_error", "p90_error", "worst_error", "spearman",
        "skipped"}
VTRAIN = {"gpus": "8", "global_batch_size_seqs": "32", "micro_batch_size_seqs": "4", "hidden_size": "1024",
          "attention_heads": "16", "num_layers": "24", "seq_len_tokens": "1024", "tp": "2", "dp": "2", "pp": "2",
          "iteration_time_ms": "219.7"}


def line(predicted, measured, group="g"):
    return Line("t", group, SECONDS, 0, measured, predicted, False)


def test_errors_are_relative_to_what_was_measured():
    found = summary([line(1.1, 1.0), line(0.5, 1.0), line(2.0, 2.0)])
    assert found["rows"] == 3
    assert found["mean_error"] == pytest.approx(0.2)
    assert found["median_error"] == pytest.approx(0.1)
    assert found["worst_error"] == pytest.approx(0.5)


def test_rank_correlation():
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 1, 2], [1, 1, 2]) == pytest.approx(1)
    assert spearman([1], [1]) is None and spearman([1, 1], [1, 2]) is None


def test_records_have_every_key_and_all_comes_first():
    found = records([line(1, 1, "a"), line(1, 2, "b")], [])
    assert [r["group"] for r in found] == ["all", "a", "b"]
    assert all(KEYS <= set(r) for r in found)


def test_a_row_is_read():
    case = READERS["vtrain_ground_truth_singlenode_a100"](VTRAIN, "vtrain_ground_truth_singlenode_a100", 0)
    assert case.column == {"replicate": 2, "tensor": 2, "pipeline": 2, "micro_batch": 4, "accumulation": 4, "recompute": 2}
    assert case.measured == pytest.approx(0.2197)
    assert 0.1 < lines_of([case])[0].predicted < 0.4


@pytest.mark.parametrize(("change", "words"), [
    ({"global_batch_size_seqs": "30"}, "does not divide"), ({"tp": ""}, "tp is 'not given'"),
    ({"attention_heads": "17"}, "17 heads")])
def test_a_row_that_cannot_be_read_says_why(change, words):
    with pytest.raises(CannotPredict, match=words):
        READERS["vtrain_ground_truth_singlenode_a100"]({**VTRAIN, **change}, "t", 0)


def test_the_fit_finds_a_minimum_within_bounds():
    truth = np.array([0.3, -0.2])
    far, near = np.full(2, 5.0), np.full(2, -5.0)
    assert minimise(lambda x: np.exp(x) - np.exp(truth), np.zeros(2), near, far) == pytest.approx(truth, abs=1e-4)
    bounded = minimise(lambda x: np.exp(x) - np.exp(truth), np.zeros(2), near, np.array([0.1, 5.0]))
    assert bounded == pytest.approx([0.1, -0.2], abs=1e-3)


def test_a_group_is_on_one_side_only():
    cases = [READERS["vtrain_ground_truth_singlenode_a100"]({**VTRAIN, "micro_batch_size_seqs": m, "tp": t}, "x", 0)
             for m in ("1", "2", "4") for t in ("1", "2", "4", "8")]
    held = held_out(cases)
    for group in {c.group for c in cases}:
        assert len({bool(h) for c, h in zip(cases, held) if c.group == group}) == 1


def test_no_table_is_passed_over_in_silence():
    unknown = {p.stem for p in TABLES.glob("*.csv")} - set(READERS) - set(NOT_READ)
    assert not {name for name in unknown if "memory" not in name and "stas_" not in name} - {
        "pipeline_schedule_formulas", "vtrain_allreduce_lut", "unsloth_max_context_qlora"}


def test_a_folder_without_tables_is_an_error(tmp_path, capsys):
    assert main_validate(["--tables", str(tmp_path / "none")]) == 2
    assert main_validate(["--tables", str(tmp_path), "--quantity", "time"]) == 2
    assert "--tables" in capsys.readouterr().err


def test_other_rows_of_the_same_columns_are_read(tmp_path, capsys):
    name = "vtrain_ground_truth_singlenode_a100"
    rows = [VTRAIN, {**VTRAIN, "global_batch_size_seqs": "30"}]
    (tmp_path / f"{name}.csv").write_text("\n".join(",".join(r) for r in [list(VTRAIN), *(r.values() for r in rows)]))
    assert main_validate(["--tables", str(tmp_path), "--json", "--quantity", "time"]) == 0
    whole = json.loads(capsys.readouterr().out)[0]
    assert (whole["table"], whole["group"], whole["rows"], whole["skipped"]) == (name, "all", 1, 1)


REACHED: dict[str, tuple[float, float]] = {}
