"""Runs: batches, names, adapters, files; and measurements to JSON and back."""

import re

import pytest

from workshop.facts import catalogue
from workshop.facts.layout import Layout
from workshop.facts.measurement import Measurement
from workshop.facts.run import Adapter, Run, read_run, run_from_table
from workshop.facts.traffic import Traffic


def test_accumulation_follows_from_the_global_batch():
    run = Run("gpt-30m", "4xH100", Layout(shard=4), micro_batch=2, seq_len=256, global_batch=64)
    assert run.accumulation == 8
    assert run.tokens_per_step == 64 * 256


def test_the_global_batch_follows_from_accumulation():
    assert (
        Run("gpt-30m", "4xH100", Layout(shard=4), micro_batch=2, seq_len=256, accumulation=3).global_batch
        == 24
    )


def test_context_ranks_share_a_sequence():
    run = Run("gpt-30m", "4xH100", Layout(context=4), micro_batch=2, seq_len=256)
    assert run.tokens_per_rank == 128


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"global_batch": 30},
            "does not divide by micro_batch 2 times data-parallel 4 = 8; the nearest that would do is 24",
        ),
        ({"global_batch": 32, "accumulation": 2}, "give one of them"),
        ({"micro_batch": 0}, "micro_batch must be a whole number of at least 1, not 0"),
        ({"seq_len": -5}, "seq_len must be a whole number of at least 1, not -5"),
        ({"optimizer": "adamww"}, "did you mean 'adamw'"),
        ({"model": "gpt-300m"}, "did you mean 'gpt-30m'"),
        ({"layout": Layout(shard=2)}, "this layout cannot run:\n- "),
    ],
)
def test_impossible_runs_say_why(fields, message):
    base = {
        "model": "gpt-30m",
        "cluster": "4xH100",
        "layout": Layout(shard=4),
        "micro_batch": 2,
        "seq_len": 256,
    }
    with pytest.raises(ValueError, match=re.escape(message)):
        Run(**(base | fields))


def test_lora_counts_rank_times_both_sides():
    # litgpt's table: rank 8 on queries and values of Llama 2 7B trains 4,194,304 weights.
    run = Run("llama-2-7b", "A100-40GB", adapter=Adapter("lora", 8, ("q", "v")))
    assert run.adapter.params(run.model) == 4_194_304


def test_a_wrong_target_lists_the_linear_maps():
    run = Run("llama-2-7b", "A100-40GB")
    with pytest.raises(ValueError, match="unknown adapter target 'q_proj'"):
        Adapter("lora", 8, ("q_proj",)).params(run.model)


def test_a_run_file_is_read(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'model = "gpt-30m"\ncluster = "4xH100"\nmicro_batch = 2\nseq_len = 256\n'
        '[layout]\nshard = 4\nzero = 3\n[adapter]\nrank = 4\ntargets = ["q"]\n'
    )
    run = read_run(path)
    assert (run.layout.zero, run.adapter.targets) == (3, ("q",))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"model": "gpt-30m", "cluster": "H100", "micro_bach": 1},
            "unknown key 'micro_bach' in run; did you mean 'micro_batch'",
        ),
        ({"model": "gpt-30m", "cluster": "H100", "layout": {"tenser": 1}}, "did you mean 'tensor'"),
        ({"model": "gpt-30m"}, "run does not say which cluster"),
    ],
)
def test_unknown_keys_are_refused(entry, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        run_from_table(entry)


def test_a_model_may_be_given_in_the_run():
    model = {"name": "mine", "num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 100}
    assert run_from_table({"model": model, "cluster": "H100"}).model.num_layers == 2


def test_measurements_survive_json(tmp_path):
    measured = Measurement(
        rank=3,
        world_size=4,
        allocated_bytes=10,
        parts={"weights": 7},
        traffic=(Traffic("all_gather", "shard", 2, 2, 100, 50),),
        setting={"device": "cpu"},
    )
    measured.save(tmp_path / "m.json")
    assert Measurement.load(tmp_path / "m.json") == measured


def test_a_measurement_with_an_unknown_key_is_refused():
    with pytest.raises(ValueError, match="did you mean 'allocated_bytes'"):
        Measurement.from_json('{"allocated_byte": 1}')


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"base_bits": -4}, "adapter: base_bits must be from 0 to 32, not -4"),
        ({"base_bits": 64}, "adapter: base_bits must be from 0 to 32, not 64"),
        ({"base_bits": float("nan")}, "adapter: base_bits must be from 0 to 32, not nan"),
        ({"base_bits": "4"}, "adapter: base_bits must be a number, not '4'"),
        ({"base_bits": 0}, "base_bits = 0 leaves no weights"),
        ({"weight_bytes": float("inf")}, "adapter: weight_bytes must be from 0 to 4, not inf"),
        (
            {"num_trainable": -5},
            "adapter: num_trainable must be a whole number, 0 (not given) or more, not -5",
        ),
        ({"targets": "all"}, "use ('all',)"),
    ],
)
def test_adapters_that_cannot_be_are_refused(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Adapter(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"model": None},
            "model must be a name of the catalogue, such as 'llama-3-8b', or a ModelSpec, not None",
        ),
        (
            {"cluster": 8},
            "cluster must be a name of the catalogue, such as '8xH100', or a ClusterSpec, not 8",
        ),
        ({"layout": "ddp"}, "layout must be a Layout, such as Layout(shard=8, zero=3), not 'ddp'"),
        (
            {"adapter": "lora"},
            "adapter must be an Adapter, such as Adapter('lora', rank=16), or None, not 'lora'",
        ),
        ({"seq_len": 10**310}, "seq_len must be at most 1,099,511,627,776, not a number of"),
    ],
)
def test_parts_of_a_wrong_kind_are_refused(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Run(**({"model": "gpt-30m", "cluster": "H100"} | fields))


def test_names_are_text():
    with pytest.raises(ValueError, match="named by text, such as '8xH100', not 8"):
        catalogue.cluster(8)
    with pytest.raises(ValueError, match="model must be text in quotes, not None"):
        catalogue.model(None)
