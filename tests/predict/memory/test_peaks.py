"""The whole prediction: parts, moments, verdicts, and the array form."""

import numpy as np
import pytest

from workshop.facts import catalogue
from workshop.facts.layout import Layout
from workshop.facts.run import Adapter, Run
from workshop.predict.case import config_of
from workshop.predict.layouts import Layouts
from workshop.predict.memory import device_bytes, memory_on, predict_memory
from workshop.predict.memory.allocator import RankHardware
from workshop.predict.memory.peaks import moments

EIGHT = Run(
    "llama-3.1-8b",
    "8xH100",
    Layout(shard=8, zero=3, recompute="full"),
    micro_batch=1,
    seq_len=4096,
    implementation="torchtitan",
)


@pytest.mark.parametrize("offload", ["none", "optimizer", "params"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_no_part_is_negative_at_any_moment_and_an_offloaded_step_is_not_on_the_device(stage, offload):
    layout = Layout(shard=8, zero=stage, precision="deepspeed-bf16", offload=offload)
    run = Run("llama-3.1-8b", "8xH100", layout, seq_len=128)
    for moment, parts in moments(config_of(run), Layouts.of_stages(run)).items():
        for part, size in parts.items():
            assert (np.asarray(size) >= 0).all(), (moment, part)
        if moment == "optimizer":
            assert (np.asarray(parts["temporaries"]) > 0).all() == (offload == "none")


def test_parts_sum_to_allocated_on_every_stage():
    run = Run(
        "gpt3-6.7b",
        "8xA100-80GB",
        Layout(pipeline=4, tensor=2, precision="megatron-bf16"),
        micro_batch=2,
        accumulation=8,
        implementation="megatron",
    )
    found = predict_memory(run)
    assert np.allclose(sum(found.parts.values()), found.allocated)
    assert len(found.moment) == 4
    assert (found.allocated <= found.reserved).all()
    assert (found.reserved < found.device).all()
    assert (found.steady <= found.allocated).all()


def test_the_first_stage_keeps_most_activations_and_the_last_has_the_loss():
    run = Run(
        "gpt3-6.7b",
        "4xA100-80GB",
        Layout(pipeline=4, precision="megatron-bf16"),
        accumulation=8,
        implementation="megatron",
    )
    parts = predict_memory(run).parts
    assert (np.diff(parts["activations"]) < 0).all()
    assert parts["logits and loss"][:3].sum() == 0
    assert parts["logits and loss"][3] > 0


def test_a_verdict_says_what_is_needed():
    assert predict_memory(EIGHT).verdict.startswith("fits: stage 0 needs ")
    alone = Run("llama-3.1-70b", "H100", micro_batch=1, seq_len=4096)
    assert not predict_memory(alone).fits
    assert predict_memory(alone).verdict.startswith("does not fit: stage 0 needs ")
    low, high = predict_memory(EIGHT).interval
    assert low < predict_memory(EIGHT).device[0] < high


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"layout": Layout(shard=8, zero=3)}, {"layout": Layout(shard=8, zero=2)}),
        ({"layout": Layout(shard=8, zero=2)}, {"layout": Layout(shard=8, zero=1)}),
        ({"layout": Layout(shard=8, zero=3, recompute="full")}, {"layout": Layout(shard=8, zero=3)}),
        (
            {"layout": Layout(shard=8, zero=3), "micro_batch": 1},
            {"layout": Layout(shard=8, zero=3), "micro_batch": 2},
        ),
        (
            {"layout": Layout(shard=8, zero=3), "seq_len": 2048},
            {"layout": Layout(shard=8, zero=3), "seq_len": 4096},
        ),
        ({"layout": Layout(shard=8, zero=3), "optimizer": "sgd"}, {"layout": Layout(shard=8, zero=3)}),
        ({"layout": Layout(shard=8, zero=3, offload="optimizer")}, {"layout": Layout(shard=8, zero=3)}),
        ({"layout": Layout(shard=8, zero=3), "adapter": Adapter()}, {"layout": Layout(shard=8, zero=3)}),
    ],
)
def test_what_saves_memory_saves_memory(less, more):
    base = {"model": "llama-3.1-8b", "cluster": "8xH200", "micro_batch": 1, "seq_len": 2048}
    small, large = (predict_memory(Run(**(base | change))).allocated[0] for change in (less, more))
    assert small < large


def test_a_smaller_rank_count_needs_more():
    sizes = [
        int(
            predict_memory(Run("llama-3.1-8b", f"{n}xH200", Layout(shard=n, zero=3), seq_len=2048)).allocated[
                0
            ]
        )
        for n in (8, 16, 64)
    ]
    assert sizes == sorted(sizes, reverse=True)


def test_qlora_keeps_base_weights_in_four_bits():
    def weights(bits):
        adapter = Adapter("lora", 8, ("q", "v"), bits)
        run = Run("llama-2-7b", "A100-80GB", Layout(precision="bf16"), seq_len=512, adapter=adapter)
        return predict_memory(run).parts["weights"][0]

    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    unpacked = 2 * 2 * 4096 * 11008
    assert weights(16) - weights(4.5) == pytest.approx(matrices * (2 - 4.5 / 8) - unpacked, rel=1e-4)


def test_many_layouts_at_once_equal_one_at_a_time():
    run = Run(
        "gpt3-6.7b", "8xA100-80GB", Layout(tensor=8, precision="megatron-bf16"), implementation="megatron"
    )
    config = config_of(run)
    sizes = {"tensor": [1, 2, 4], "pipeline": [1, 2, 8], "shard": [1, 4, 2], "zero": [0, 1, 1]}
    together = Layouts.of_columns(**sizes, micro_batch=2, seq_len=2048, accumulation=16)
    many = device_bytes(config, together)
    parts = memory_on(config, together)
    for index in range(3):
        one = Layouts.of_columns(
            **{name: values[index] for name, values in sizes.items()},
            micro_batch=2,
            seq_len=2048,
            accumulation=16,
        )
        assert float(device_bytes(config, one)[0]) == many[index] == parts.device[index]


def test_a_full_device_gets_its_idle_blocks_back():
    run = Run("llama-3.1-8b", "8xH100", Layout(shard=8, zero=3), micro_batch=2, seq_len=4096)
    found = predict_memory(run)
    roomy = memory_on(
        config_of(run),
        Layouts.of_columns(shard=8, zero=3, micro_batch=2, seq_len=4096),
        RankHardware(capacity=10**15),
    )
    assert found.allocated[0] < run.cluster.device.memory_bytes
    assert found.device[0] <= max(run.cluster.device.memory_bytes, roomy.allocated + 2 * 2**30)


def test_ranks_on_this_machine_share_its_memory():
    run = Run("gpt-30m", "this-machine", Layout(shard=4, zero=3), micro_batch=4, seq_len=256)
    found = predict_memory(run)
    assert found.capacity == run.cluster.device.memory_bytes // 4
    assert found.device[0] == found.reserved[0] == found.allocated[0]  # no context, no caching allocator
    assert "workspace" not in found.parts


def schedule_bytes(schedule, part, virtual=1):
    layout = Layout(pipeline=4, precision="megatron-bf16", schedule=schedule, virtual_stages=virtual)
    run = Run("gpt3-6.7b", "4xA100-80GB", layout, accumulation=16, implementation="megatron")
    return predict_memory(run).parts[part]


def test_dualpipe_holds_two_stages_and_one_micro_batch_more():
    # The table of arXiv 2412.19437: parameters twice, activations p + 1 against p.
    once, twice = schedule_bytes("1f1b", "weights"), schedule_bytes("dualpipe", "weights")
    assert np.allclose(twice, once + once[::-1])
    ratio = schedule_bytes("dualpipe", "activations").max() / schedule_bytes("1f1b", "activations").max()
    assert ratio == pytest.approx(5 / 4, rel=0.02)


def test_zbv_puts_embedding_and_loss_on_the_first_rank_and_balances_activations():
    weights, logits = schedule_bytes("zbv", "weights"), schedule_bytes("zbv", "logits and loss")
    assert weights.sum() == pytest.approx(schedule_bytes("1f1b", "weights").sum())
    assert (weights[0] > weights[1:]).all()
    assert logits[0] > 0 == logits[1:].sum()
    activations = schedule_bytes("zbv", "activations")
    assert activations[1] == activations[2] == activations[3]
    assert activations[1] == pytest.approx(schedule_bytes("1f1b", "activations")[0], rel=0.02)


def test_masks_are_kept_only_for_a_model_that_is_trained_with_dropout():
    layout = Layout(tensor=8, sequence_parallel=True, precision="megatron-bf16")
    sums = {}
    for name in ("megatron-7.5b", "llama-2-7b"):
        spec = catalogue.model(name)
        for dropout in (False, True):
            run = Run(spec.resized(dropout=dropout), "8xH100", layout, 1, 2048, implementation="megatron")
            sums[name, dropout] = float(predict_memory(run).parts["activations"][0])
        mask = 2048 * spec.hidden_size / 8
        more = sums[name, True] - sums[name, False]
        # Two masks of a byte in every layer, and the embedding's.
        assert more == pytest.approx((2 * spec.num_layers + 1) * mask)
    assert catalogue.model("megatron-7.5b").dropout
    assert not catalogue.model("llama-2-7b").dropout


def test_metas_layout_of_405b_fits_as_the_paper_has_it():
    """arXiv 2407.21783, section 3.3.2: gradients sharded, a layer less on the first and last stage."""

    def allocated(**more):
        layout = Layout(
            tensor=8, sequence_parallel=True, pipeline=16, shard=128, precision="megatron-bf16", **more
        )
        run = Run(
            "llama-3.1-405b", "16384xH100", layout, 1, 8192, global_batch=2048, implementation="megatron"
        )
        found = predict_memory(run)
        return found.allocated / 2**30, found.fits

    searched, fits = allocated(zero=1, virtual_stages=4)
    assert not fits
    theirs, fits = allocated(zero=2, virtual_stages=8, embedding_in_stages=True)
    assert fits
    assert theirs.max() < 72
    assert searched.max() > 79.1
    assert theirs[0] < theirs[1] > theirs[-1]  # the ends have a layer less
