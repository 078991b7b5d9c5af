"""The report's arithmetic, what readers refuse, and that published times are predicted as well as they
were.
"""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import fit_rates
from workshop.predict.case import NotPredictable
from workshop.predict.time.rates import rates_of
from workshop.published.fit import held_out, minimise
from workshop.published.predicted import predict_times
from workshop.published.record import SECONDS, TIMES
from workshop.published.report import Line, records, spearman, summary, time_lines, validate
from workshop.published.tables import NOT_READ, READERS, read_folder, read_row, read_table

TABLES = Path(__file__).parents[2] / "data" / "published"
KEYS = {
    "table",
    "group",
    "quantity",
    "rows",
    "mean_error",
    "median_error",
    "p90_error",
    "worst_error",
    "spearman",
    "skipped",
}
VTRAIN = {
    "gpus": "8",
    "global_batch_size_seqs": "32",
    "micro_batch_size_seqs": "4",
    "hidden_size": "1024",
    "attention_heads": "16",
    "num_layers": "24",
    "seq_len_tokens": "1024",
    "tp": "2",
    "dp": "2",
    "pp": "2",
    "iteration_time_ms": "219.7",
    "gpu": "A100 80GB",
    "activation_recompute": "full",
}


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
    assert spearman([1], [1]) is None
    assert spearman([1, 1], [1, 2]) is None


def test_records_have_every_key_and_all_comes_first():
    found = records([line(1, 1, "a"), line(1, 2, "b")], [])
    assert [r["group"] for r in found] == ["all", "a", "b"]
    assert all(set(r) >= KEYS for r in found)


def vtrain(**changes):
    """A row of vTrain's as an observation."""
    row = read_row(READERS["vtrain_ground_truth_singlenode_a100"], {**VTRAIN, **changes})
    return row.observations(TIMES)[0]


def test_a_row_is_read():
    case = vtrain()
    assert case.column == {
        "replicate": 2,
        "shard": 1,
        "zero": 0,
        "tensor": 2,
        "pipeline": 2,
        "virtual_stages": 1,
        "context": 1,
        "expert": 1,
        "micro_batch": 4,
        "accumulation": 4,
    }
    assert case.record.run.layout.recompute == "full"
    assert case.measured == pytest.approx(0.2197)
    assert 0.1 < predict_times([case])[0] < 0.4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"global_batch_size_seqs": "30"}, "does not divide"),
        ({"tp": ""}, "tp is not given"),
        ({"attention_heads": "17"}, "17 heads"),
        ({"gpus": "16"}, "is 8, not the row's 16 devices"),
        ({"gpu": "X9"}, "device 'X9' is not known here.*H100"),
        ({"tp": "two"}, "tp is 'two', not a number"),
    ],
)
def test_a_row_that_cannot_be_read_says_why(change, words):
    with pytest.raises(NotPredictable, match=words):
        vtrain(**change)


def test_the_fit_finds_a_minimum_within_bounds():
    truth = np.array([0.3, -0.2])
    far, near = np.full(2, 5.0), np.full(2, -5.0)
    assert minimise(lambda x: np.exp(x) - np.exp(truth), np.zeros(2), near, far) == pytest.approx(
        truth, abs=1e-4
    )
    bounded = minimise(lambda x: np.exp(x) - np.exp(truth), np.zeros(2), near, np.array([0.1, 5.0]))
    assert bounded == pytest.approx([0.1, -0.2], abs=1e-3)


def test_a_group_is_on_one_side_only():
    cases = [
        vtrain(micro_batch_size_seqs=m, tp=t, dp=str(4 // int(t)))
        for m in ("1", "2", "4")
        for t in ("1", "2", "4")
    ]
    held = held_out(cases)
    for group in {c.group for c in cases}:
        assert len({bool(h) for c, h in zip(cases, held, strict=True) if c.group == group}) == 1


def test_the_file_holds_what_the_fit_finds():
    """The smallest set, again from its usual values; `benchmarks/fit_rates.py` does it for all of them."""
    found, cases, names = fit_rates.fitted("GB200", TABLES)
    assert names == ("host_seconds",)
    assert len(cases) > 10
    for name in names:
        assert getattr(found, name) == pytest.approx(getattr(rates_of("GB200"), name), rel=0.005)


def test_a_constant_is_written_where_it_stands(tmp_path, monkeypatch):
    file = tmp_path / "rates.toml"
    file.write_text('[device."A"]\nmemory = 0.5\n\n[device."B"]\nlike = "A"\nmemory = 0.7\n\n[software.x]\n')
    monkeypatch.setattr(fit_rates, "FILE", file)
    fit_rates.write("B", rates_of("H100").with_values(memory=0.123456, skew=0.25), ("memory", "skew"))
    text = file.read_text()
    assert text.startswith('[device."A"]\nmemory = 0.5\n')
    assert '[device."B"]\nskew = 0.25\nlike = "A"\nmemory = 0.123\n' in text


def test_no_table_is_passed_over_in_silence():
    assert {p.stem for p in TABLES.glob("*.csv")} - {"canonical"} <= set(READERS) | set(NOT_READ)
    assert not set(READERS) & set(NOT_READ)


def test_a_folder_without_tables_is_an_error(tmp_path):
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(ValueError, match="--tables|known table"):
            validate(folder)


def test_other_rows_of_the_same_columns_are_read(tmp_path):
    name = "vtrain_ground_truth_singlenode_a100"
    rows = [VTRAIN, {**VTRAIN, "global_batch_size_seqs": "30"}]
    (tmp_path / f"{name}.csv").write_text(
        "\n".join(",".join(r) for r in [list(VTRAIN), *(r.values() for r in rows)])
    )
    whole = validate(tmp_path, "time")[0]
    assert (whole["table"], whole["group"], whole["rows"], whole["skipped"]) == (name, "all", 1, 1)


# What the predictor reaches, with a little room: (table, half) -> largest mean error, largest 90th
# percentile.
REACHED = {
    ("bloom_176b_layout_sweep_a100", "all"): (0.056, 0.103),
    ("bloom_176b_layout_sweep_a100", "held"): (0.057, 0.094),
    # NeMo of 2024 on H100. H100's constants see half of it; Llama 3's rows and NeMo's long sequences were about
    # 1.7 and 0.6 points nearer without it, and torchtitan's tail, as H100 with less power, 0.8.
    ("dgxc_benchmarking", "all"): (0.080, 0.155),
    ("dgxc_benchmarking", "held"): (0.077, 0.133),
    ("dgxc_benchmarking_bridge", "all"): (0.160, 0.231),
    ("ibm_fms_fsdp_llama2", "all"): (0.043, 0.058),
    ("ibm_fms_fsdp_llama2", "held"): (0.043, 0.058),
    ("internevo_7b_scaling_a100", "all"): (0.025, 0.033),
    ("internevo_7b_scaling_a100", "held"): (0.018, 0.027),
    ("korthikanti_2022_seqpar_selective", "all"): (0.030, 0.049),
    ("llama3_405b_layouts", "all"): (0.076, 0.115),
    ("megatron_2020_tp_scaling", "all"): (0.046, 0.103),
    ("megatron_core_h100_weak_scaling", "all"): (0.054, 0.108),
    ("megatron_core_h100_weak_scaling", "held"): (0.037, 0.056),
    ("megatron_sc21_table1_a100", "all"): (0.031, 0.049),
    ("megatron_sc21_table1_a100", "held"): (0.031, 0.048),
    ("megatron_sc21_table2_zero3_vs_ptd_a100", "all"): (0.057, 0.094),
    ("mosaicml_llm_foundry_throughput", "all"): (0.046, 0.079),
    ("mosaicml_llm_foundry_throughput", "held"): (0.042, 0.071),
    ("nanotron_ultrascale_best_configs_h100", "all"): (0.061, 0.106),
    ("nanotron_ultrascale_best_configs_h100", "held"): (0.059, 0.098),
    # Of Megatron-Bridge's rows one constant alone is fitted, the launch of a GB200's host.
    ("nvidia_megatron_bridge_performance", "all"): (0.058, 0.118),
    ("nvidia_megatron_bridge_performance", "held"): (0.082, 0.168),
    ("nvidia_nemo_2407_h100_fp8", "all"): (0.019, 0.038),
    ("nvidia_nemo_2407_h100_fp8", "held"): (0.015, 0.020),
    ("nvidia_nemo_long_sequence_cp", "all"): (0.030, 0.050),
    ("nvidia_nemo_long_sequence_cp", "held"): (0.033, 0.051),
    # None of Together's rows is fitted but the launch of a GB200's host. Repeats of one configuration lie as far
    # apart as 406, 551 and 616 TFLOP/s (DeepSeek-V3 on 256 B200 in April and May).
    ("together_dgxc_benchmarking", "all"): (0.107, 0.215),
    ("together_dgxc_benchmarking", "held"): (0.089, 0.206),
    ("torchtitan_performance", "all"): (0.095, 0.204),
    ("torchtitan_performance", "held"): (0.116, 0.273),
    ("vtrain_ground_truth_multinode_a100", "all"): (0.073, 0.167),
    ("vtrain_ground_truth_multinode_a100", "held"): (0.064, 0.114),
    ("vtrain_ground_truth_singlenode_a100", "all"): (0.073, 0.176),
    ("vtrain_ground_truth_singlenode_a100", "held"): (0.073, 0.166),
}


@pytest.fixture(scope="module")
def published():
    return time_lines(read_folder(TABLES)[0])[0]


@pytest.mark.parametrize(("table", "half"), REACHED)
def test_published_times_are_predicted_as_well_as_before(published, table, half):
    errors = np.array([x.error for x in published if x.table == table and (half == "all" or x.held)])
    mean, tail = REACHED[table, half]
    assert errors.mean() <= mean
    assert np.quantile(errors, 0.9) <= tail


# What was asked for: published times within so much, on all rows of a table: a point above what the predictor of
# the round before reached. Not met otherwise: torchtitan (9.5 %: row-wise FP8 was slower than bf16), Megatron-Bridge
# (6 %: GPT-OSS, and small micro-batches that wait for their host).
TARGETS = {
    "vtrain_ground_truth_multinode_a100": 0.08,  # met by a hair
    "vtrain_ground_truth_singlenode_a100": 0.08,
    "mosaicml_llm_foundry_throughput": 0.05,
    "megatron_sc21_table1_a100": 0.06,
    "megatron_sc21_table2_zero3_vs_ptd_a100": 0.06,
    "megatron_core_h100_weak_scaling": 0.06,
    "bloom_176b_layout_sweep_a100": 0.065,
}


def test_blooms_rows_are_within_the_target(published):
    """Those too whose batch stands in the heading of their table."""
    errors = [x.error for x in published if x.table == "bloom_176b_layout_sweep_a100"]
    assert np.median(errors) <= 0.055
    assert max(errors) < 0.25


@pytest.mark.parametrize("table", TARGETS)
def test_targets_are_met(published, table):
    assert np.mean([x.error for x in published if x.table == table]) <= TARGETS[table]


def test_rows_no_constant_was_fitted_on_are_predicted_as_well(published):
    seen, held = (np.mean([x.error for x in published if x.held == side]) for side in (False, True))
    assert held < 1.35 * seen
    assert held < 0.1


def test_blooms_best_layout_is_among_the_first_three():
    """The sweep of 72 layers of 14,336 on 384 GPUs: time per sequence by stages and micro-batch."""
    records_, _ = read_table(TABLES / "bloom_176b_layout_sweep_a100.csv")
    cases = [
        case
        for record in records_
        for case in record.observations(TIMES)
        if (case.model.num_layers, case.model.hidden_size, case.model.num_heads) == (72, 14336, 64)
    ]
    measured, predicted = {}, {}
    for case in cases:
        at = case.column
        cut, batch = (at["pipeline"], at["micro_batch"]), at["shard"] * at["micro_batch"] * at["accumulation"]
        if batch < 2000:
            continue  # a smaller batch has a larger bubble
        measured[cut] = min(measured.get(cut, np.inf), case.measured / batch)
        predicted[cut] = predict_times([case])[0] / batch
    assert len(measured) >= 10
    assert min(measured, key=measured.get) in sorted(predicted, key=predicted.get)[:3]
