"""What decides a run: its row's columns, and neither the measurement, nor the table's name."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from workshop.predict.case import NotPredictable
from workshop.published import cells
from workshop.published.names import named_device, named_model
from workshop.published.predicted import predict_times, predicted_memory, time_gap
from workshop.published.record import MFU, TOKENS, Source
from workshop.published.sources import internevo, litgpt, nanotron
from workshop.published.sources.megatron_arguments import arguments
from workshop.published.tables import READERS, read_folder, read_row, read_table

TABLES = Path(__file__).parents[2] / "data" / "published"


def rows_of(table):
    with (TABLES / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("table", READERS)
def test_what_was_measured_decides_nothing(table):
    """A run is the same when every measured cell is empty, or says something else."""
    source, compared = READERS[table], 0
    for row in rows_of(table)[::7]:
        try:
            honest = source.describe(row)
        except (NotPredictable, ValueError):
            continue
        for cell in ("", "1", "99999"):
            changed = row | dict.fromkeys(source.measured, cell)
            assert replace(read_or_described(source, changed), quantities=()) == honest
        compared += 1
    assert compared


def read_or_described(source, row):
    try:
        return read_row(source, row)
    except NotPredictable:  # "1" is no memory with a unit: then what was run is all there is
        return source.describe(row)


def test_the_same_row_is_the_same_run_in_another_table(tmp_path):
    one, other = "vtrain_ground_truth_multinode_a100", "vtrain_ground_truth_singlenode_a100"
    (tmp_path / f"{other}.csv").write_text((TABLES / f"{one}.csv").read_text("utf-8"), "utf-8")
    here, there = read_table(TABLES / f"{one}.csv")[0], read_table(tmp_path / f"{other}.csv")[0]
    assert [r.run for r in here] == [r.run for r in there]
    assert [r.software for r in here] == [r.software for r in there]


def test_the_release_and_the_clusters_name_decide_nothing():
    bridge = READERS["nvidia_megatron_bridge_performance"]
    row = next(r for r in rows_of("nvidia_megatron_bridge_performance") if r["model"] == "DeepSeekV3")
    old, new = (read_row(bridge, row | {"release": r}) for r in ("26.02 NeMo Container", "26.08"))
    assert (old.run, old.software) == (new.run, new.software)
    ci = READERS["megatron_lm_ci_golden_memory_time"]
    row = next(r for r in rows_of("megatron_lm_ci_golden_memory_time") if "dracooci" in r["platform_file"])
    assert read_row(ci, row).run == read_row(ci, row | {"platform_file": "dev_dgx_a100"}).run


def test_a_recipe_decides_what_it_says():
    bridge = READERS["nvidia_megatron_bridge_performance"]
    rows = [r for r in rows_of("nvidia_megatron_bridge_performance") if r["model"] == "Qwen3_30B_a3B"]
    whole = next(r for r in rows if r["cuda_graphs"] == "full_iteration")
    parts = read_row(bridge, whole | {"cuda_graphs": "attn+moe_router", "recompute_modules": "moe_act"})
    after, before = read_row(bridge, whole).software, parts.software
    assert (after.captured, after.captured_experts) == (True, True)
    assert (before.captured, before.captured_experts) == (True, False)
    assert not read_row(bridge, whole | {"cuda_graphs": "moe_router"}).software.captured
    assert parts.run.layout.recompute_modules == ("moe_act",)
    assert (after.fused_experts, after.attention_bits, after.overlap_expert) == (True, 8, 0.93)
    bare = dict.fromkeys(("cuda_graphs", "dispatcher", "a2a_overlap", "fused_experts", "recipe"), "")
    assert "stack" in dict(read_row(bridge, whole | bare).assumed)
    assert "stack" not in dict(parts.assumed)
    with pytest.raises(NotPredictable, match="full_iteration"):
        read_row(bridge, whole | {"cuda_graphs": "full"})


def test_every_row_that_can_be_read_has_its_recipe():
    bridge = READERS["nvidia_megatron_bridge_performance"]
    for row in rows_of("nvidia_megatron_bridge_performance"):
        try:
            record = read_row(bridge, row)
        except (NotPredictable, ValueError):
            continue
        assert row["recipe"], row["model"]
        assert bool(row["dispatcher"]) == record.run.model.is_moe


def test_all_ranks_is_a_number():
    assert internevo.shards(-1, 6) == 6
    assert internevo.shards(8, 4) == 4
    with pytest.raises(NotPredictable, match="zero1 is 0"):
        internevo.shards(0, 4)
    with pytest.raises(NotPredictable, match="3 does not divide 8"):
        internevo.shards(3, 8)


def test_two_devices_are_two():
    row = rows_of("litgpt_resource_tables_a100_40gb")[0]
    one, two = litgpt.describe(row), litgpt.describe(row | {"gpu": "2 x A100"})
    assert (one.run.cluster.num_devices, two.run.cluster.num_devices) == (1, 2)
    assert two.run.layout.shard == 2
    assert predicted_memory(two).peak_bytes < predicted_memory(one).peak_bytes
    with pytest.raises(NotPredictable, match="2 devices with 4-bit"):
        litgpt.describe(row | {"gpu": "2 x A100", "quantization": "bnb.nf4"})


def test_other_models_and_devices_of_a_table_are_read():
    row = rows_of("nvidia_nemo_long_sequence_cp")[0]
    found = read_row(
        READERS["nvidia_nemo_long_sequence_cp"], row | {"model_precision_gpu": "LLAMA3-8B (BF16) - H200"}
    )
    assert (found.run.model.name, found.run.cluster.device.name) == ("llama-3-8b", "H200")
    assert found.run.layout.precision == "megatron-bf16"


@pytest.mark.parametrize(
    ("name", "known"),
    [("A100-SXM4-80GB", "A100-80GB"), ("H100 SXM HBM2e 96GB 500W", "H100-96GB"), ("DGX-H100", "H100"),
     ("a100_40gb", "A100-40GB"), ("A800 80GB", "A800-80GB"), ("4090", "RTX-4090"), ("DGX-GB200", "GB200")],
)  # fmt: skip
def test_devices_by_the_names_of_sources(name, known):
    assert named_device(name) == known


def test_unknown_names_are_refused_and_list_the_known():
    with pytest.raises(NotPredictable, match="may be several devices .*A100-40GB, A100-80GB"):
        named_device("A100")
    with pytest.raises(NotPredictable, match="'X9' is not known here .*H100"):
        named_device("X9")
    with pytest.raises(NotPredictable, match="'Lama 9' is not known.*llama-2-7b"):
        named_model("Lama 9")


def test_a_mistake_in_a_reader_is_no_skipped_row():
    def broken(row):
        return row["no_such_column"].run

    with pytest.raises(KeyError):
        read_row(Source(("t",), broken), {})
    with pytest.raises(AttributeError):
        read_row(Source(("t",), lambda row: row.nothing), {})  # type: ignore[attr-defined]


def test_bloom_and_torchtitan_are_one_run_for_time_and_memory():
    for table in ("bloom_176b_layout_sweep_a100", "torchtitan_performance"):
        both = [r for r in read_table(TABLES / f"{table}.csv")[0] if len(r.quantities) == 2]
        assert len(both) >= 9, table
        assert not [r for r in both if time_gap(r.run)]


def test_devices_are_the_product_of_the_degrees():
    records, skipped = read_folder(TABLES)
    assert all(r.run.layout.world_size == r.run.cluster.num_devices for r in records)
    assert any("is 640, not the row's 320 devices" in left.reason for left in skipped)


def test_nanotrons_mfu_is_its_tokens_in_its_own_count():
    """Each figure's MFU follows from the tokens a second of the results, a tied table counted twice."""
    records, _ = read_table(TABLES / "nanotron_ultrascale_best_configs_h100.csv")
    assert len(records) == 18
    for record in records:
        found = record.measured[TOKENS] * record.flops_per_token / 989e12
        assert found == pytest.approx(record.measured[MFU], rel=0.003), record.name


def test_a_row_with_the_figures_mfu_alone_is_predicted_in_that_count():
    reader = READERS["nanotron_ultrascale_best_configs_h100"]
    row = next(r for r in rows_of(reader.tables[0]) if r["pp"] == "2" and r["model_params"] == "1.34B")
    both = read_row(reader, row)
    alone = read_row(reader, row | {"tokens_per_second_per_gpu": ""})
    assert alone.run == both.run
    assert TOKENS not in alone.measured
    tokens, mfu = (float(predict_times([record.observations()[0]])[0]) for record in (both, alone))
    assert mfu == pytest.approx(tokens * both.flops_per_token / 989.4e12, rel=1e-3)


def test_nanotron_cuts_where_its_results_say():
    """Parameters of the first stage, embedding included, give the layers that lie on it."""
    for row in rows_of("nanotron_ultrascale_best_configs_h100"):
        if not row["first_stage_params"]:
            continue
        run = nanotron.describe(row).run
        size = float(row["first_stage_params"][:-1]) * {"M": 1e6, "G": 1e9}[row["first_stage_params"][-1]]
        table = run.model.vocab_size * run.model.hidden_size
        layer = sum(linear.weights for linear in run.model.linears())
        assert run.layout.first_stage_layers == round((size - table) / layer), row["model_params"]


def network(row, **cells):
    return nanotron.describe(row | cells).run.cluster.inter.bytes_per_second * 8 / 1e9


def test_the_network_is_as_it_was_tested():
    rows = rows_of("nanotron_ultrascale_best_configs_h100")
    wide = next(r for r in rows if r["gpus"] == "256")
    assert network(wide) == pytest.approx(float(wide["all_reduce_test_GBps"]), abs=0.01)
    assert network(wide, all_reduce_test_GBps="") == 400  # as the vendor builds it
    shared = wide | {"zero_stage": "1"}
    assert 74 < network(shared, all_gather_test_GBps="75", reduce_scatter_test_GBps="75") < 76
    half = {"dp": "32", "pp": "2", "all_gather_test_GBps": "75", "reduce_scatter_test_GBps": "75"}
    assert network(shared, **half) == pytest.approx(127, abs=2)  # 122 to 129 were tested over 16 nodes
    with pytest.raises(NotPredictable, match="give GB/s above 0"):
        network(wide, all_reduce_test_GBps="0")


@pytest.mark.parametrize("cell", ["inf", "1e400", "nan", "-inf (2)"])
def test_a_number_that_is_not_finite_is_refused_in_a_sentence(cell):
    for read in (cells.number, cells.whole):
        with pytest.raises(NotPredictable, match=r"gpus is .*, not a finite number"):
            read({"gpus": cell}, "gpus")


def test_arguments_are_given_by_name():
    assert arguments({"other_args_json": '{"a": 1}'}) == {"a": 1}
    with pytest.raises(NotPredictable, match="other_args_json is 3, not arguments by name"):
        arguments({"other_args_json": "3"})
