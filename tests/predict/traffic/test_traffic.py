"""Predicted traffic: against the arithmetic, against the time model, and against rehearsals of real code."""

from pathlib import Path

import numpy as np
import pytest

from workshop import show
from workshop.facts import catalogue
from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.precision import precision
from workshop.facts.run import Adapter, Run
from workshop.facts.stack import software
from workshop.predict.case import Setting
from workshop.predict.collectives import Wires
from workshop.predict.layouts import Layouts
from workshop.predict.time.rates import rates_of
from workshop.predict.time.step import predict_steps
from workshop.predict.traffic import predict_traffic
from workshop.predict.traffic.torch import MIB, buckets

TRAIN = Path(__file__).parents[3] / "benchmarks" / "rehearsed" / "train.py"
SHAPES = {"small": (3, 192, 8, 2048, 512), "wide": (4, 384, 8, 4096, 1024), "deep": (8, 256, 8, 1024, 704)}


def shape(size, kind="gpt"):
    layers, hidden, heads, vocab, ffn = SHAPES[size]
    if kind == "gpt2":
        return ModelSpec(
            "gpt2", layers, hidden, heads, vocab, positions="learned", max_positions=512, norm="layernorm",
            gated_mlp=False, qkv_bias=True, attention_out_bias=True, mlp_bias=True, tied_embeddings=True,
        )  # fmt: skip
    return ModelSpec(kind, layers, hidden, heads, vocab, ffn_hidden_size=ffn, num_kv_heads=heads // 2)


def run_of(model, layout, micro_batch=4, accumulation=1, **more):
    cluster = f"{layout.world_size}xA100-80GB"
    return Run(model, cluster, layout, micro_batch, 128, accumulation=accumulation, **more)


def rows(traffic):
    return sorted(tuple(vars(row).values()) for row in traffic)


CASES = [
    ("2 --layout ddp", {"replicate": 2}),
    ("2 --layout ddp --accumulate 3 --size wide --dtype bf16", {"replicate": 2, "precision": "bf16"}),
    ("2 --layout ddp --model gpt2", {"replicate": 2}),
    ("2 --layout zero1", {"shard": 2, "zero": 1}),
    ("4 --layout fsdp --dtype mixed --accumulate 2", {"shard": 4, "zero": 3, "precision": "fsdp-bf16"}),
    ("4 --layout fsdp --model gpt2 --size wide --recompute", {"shard": 4, "zero": 3, "recompute": "full"}),
    ("2 --layout fsdp-zero2", {"shard": 2, "zero": 2}),
    ("4 --layout hsdp --size deep", {"replicate": 2, "shard": 2, "zero": 3}),
    ("2 --layout tp --recompute", {"tensor": 2, "recompute": "full"}),
    ("2 --layout tp --size wide --accumulate 2", {"tensor": 2}),
    ("4 --layout tp-sp --size deep", {"tensor": 4, "sequence_parallel": True}),
    (
        "2 --layout tp-sp --recompute --optimizer sgd",
        {"tensor": 2, "sequence_parallel": True, "recompute": "full"},
    ),
]


@pytest.mark.parametrize(("line", "layout"), CASES)
def test_equal_to_a_rehearsal_of_the_same_program(line, layout):
    pytest.importorskip("torch")
    from workshop.rehearse import rehearse

    if "gpt2" in line:
        pytest.importorskip("transformers")
    world, *arguments = [*line.split(), "--keep-root", "--cut-words"]
    option = {name[2:]: value for name, value in zip(arguments, [*arguments[1:], ""], strict=True)}
    model = shape(option.get("size", "small"), option.get("model", "gpt"))
    wanted = run_of(
        model,
        Layout(**{"precision": "fp32", **layout}),
        accumulation=int(option.get("accumulate", 1)),
        optimizer=option.get("optimizer", "adamw"),
        implementation=implementation("torch", step_room=4.0),
    )
    played = rehearse(TRAIN, int(world), arguments=tuple(arguments))
    predicted = predict_traffic(wanted)
    assert rows(predicted.traffic) == rows(played.traffic)
    both = show.traffic_table({"predicted": predicted, "rehearsed": played})
    assert "agree to the byte" in str(both)


def test_a_pipeline_equals_its_rehearsal_on_every_rank():
    pytest.importorskip("torch")
    from workshop.rehearse import rehearse

    line = ("--layout", "1f1b", "--size", "deep", "--accumulate", "8", "--batch", "8")
    predicted = predict_traffic(run_of(shape("deep"), Layout(pipeline=4, precision="fp32"), 1, 8))
    for rank in (0, 1, 3):
        played = rehearse(TRAIN, 4, rank, arguments=line)
        assert rows(predicted.on_stage(rank).traffic) == rows(played.traffic)


def test_a_bucket_is_full_when_it_has_reached_its_limit():
    assert buckets([]) == []
    assert buckets([MIB - 1, 1, 24 * MIB, 24 * MIB, 5]) == [MIB, 48 * MIB, 5]
    assert sum(buckets([3e6] * 77)) == 77 * 3e6


def test_megatron_sends_what_the_papers_say():
    model = catalogue.model("gpt3-175b")
    layout = Layout(tensor=8, pipeline=8, virtual_stages=3, schedule="interleaved", precision="megatron-bf16")
    run = Run(model, "64xA100-80GB", layout, 1, 2048, global_batch=64, implementation="megatron")
    middle = {(row.name, row.axis): row for row in predict_traffic(run).on_stage(3).traffic}
    # Two all-reduces forward and two backward in each of 12 layers (arXiv 1909.08053, figure 4).
    reduced = middle["all_reduce", "tensor"]
    assert reduced.count == 64 * 12 * 4
    assert reduced.payload_bytes == reduced.count * 2048 * 12288 * 2
    # Three chunks, so three times the messages (arXiv 2104.04473, section 2.2), of an eighth each (4.1).
    assert middle["send", "pipeline"].count == 64 * 3 * 2
    assert middle["send", "pipeline"].payload_bytes == 64 * 3 * 2 * 2048 * 12288 * 2 // 8
    ends = predict_traffic(run).on_stage(0).traffic
    assert {row.count for row in ends if row.name == "send"} == {64 * 5}  # no gradients leave the first chunk


def test_sequence_parallelism_sends_as_much_forward_as_tensor_parallelism_alone():
    """Korthikanti et al., section 4.2.2: an all-reduce is a reduce-scatter and an all-gather."""
    sums = []
    for sequence_parallel in (False, True):
        layout = Layout(tensor=8, sequence_parallel=sequence_parallel, precision="megatron-bf16")
        run = Run("llama-2-7b", "8xH100", layout, 1, 4096, implementation="megatron")
        sums.append(predict_traffic(run).wire_bytes)
    # All else is equal; backward gathers the inputs of 64 column maps, and of the head, once more.
    once = 4096 * 4096 * 2 * 7 / 8
    assert sums[1] - sums[0] == pytest.approx(once * 65, rel=0.02)


def test_the_time_model_prices_the_same_bytes():
    layout = Layout(tensor=4, replicate=2, precision="megatron-fp16")
    model = catalogue.model("megatron-7.5b")
    run = Run(model, "8xA100-80GB", layout, 2, 2048, accumulation=3, implementation="megatron")
    rates, stack = rates_of("A100-80GB"), software("megatron-2021")
    setting = Setting(model, run.cluster, precision("megatron-fp16"), rates, stack)
    seconds = predict_steps(setting, Layouts.of_runs([run]))
    wires = Wires.of(run.cluster, rates, library=stack.library)
    by_axis = {row.axis: row for row in predict_traffic(run).traffic if row.payload_bytes > 1e6}
    tensor, data = by_axis["tensor"], by_axis["data"]
    in_layers = 3 * model.num_layers * 4  # without the embedding's and the head's, which the head's time has
    each = wires.seconds("all_reduce", tensor.payload_bytes / tensor.count, 4)
    assert seconds.tensor[0] == pytest.approx(float(in_layers * each), rel=0.02)
    once = wires.seconds("all_reduce", data.payload_bytes, 2, 4)
    assert seconds.data[0] == pytest.approx(float(once), rel=0.02)


def test_experts_and_context_appear_on_their_axes():
    layout = Layout(shard=16, zero=1, expert=8, context=2, precision="megatron-bf16")
    run = Run("mixtral-8x7b", "32xH100", layout, 1, 4096, global_batch=16, implementation="megatron")
    found = predict_traffic(run).by_axis()
    assert {"context", "expert"} <= set(found)
    assert all(size > 0 for size in found.values())
    assert sum(found.values()) == predict_traffic(run).wire_bytes


def test_one_rank_says_nothing_and_shows_it():
    silent = predict_traffic(run_of(shape("small"), Layout(precision="fp32")))
    assert silent.traffic == ()
    assert silent.wire_bytes == 0
    assert "0 B on the wire" in str(silent)


@pytest.mark.parametrize(
    ("layout", "more", "word"),
    [
        ({"replicate": 2}, {"adapter": Adapter(rank=8)}, "an adapter"),
        ({"shard": 2, "zero": 3, "offload": "optimizer"}, {}, "offload of optimizer"),
        ({"pipeline": 2, "schedule": "zbv"}, {"accumulation": 8}, "folds the pipeline"),
    ],
)
def test_what_has_no_closed_form_is_refused(layout, more, word):
    with pytest.raises(ValueError, match=word):
        predict_traffic(run_of(shape("deep"), Layout(**layout), **more))


def test_a_stage_that_is_not_there_is_named():
    predicted = predict_traffic(run_of(shape("deep"), Layout(pipeline=4, precision="fp32"), 1, 8))
    assert predicted.busiest_stage in (1, 2)
    assert len({tuple(row.items()) for row in predicted.to_list()}) == 8
    with pytest.raises(ValueError, match="the pipeline has 4"):
        predicted.on_stage(4)
    assert np.isclose(predicted.wire_bytes, sum(predicted.by_collective().values()))


@pytest.mark.parametrize(
    ("layout", "times"),
    [
        (Layout(replicate=64, precision="fp32"), 2),
        (Layout(shard=64, zero=1, precision="fp32"), 2),
        (Layout(shard=64, zero=2, precision="fp32"), 2),
        (Layout(shard=64, zero=3, precision="fp32"), 3),
    ],
)
def test_traffic_is_2_2_2_and_3_times_the_weights(layout, times):
    """Rajbhandari et al. 2020, section 7, in the ring count: each times (N - 1) / N."""
    run = Run("llama-3-8b", "64xH100", layout, seq_len=4096, implementation="deepspeed")
    assert predict_traffic(run).wire_bytes == pytest.approx(times * 63 / 64 * 4 * run.model.num_params)
