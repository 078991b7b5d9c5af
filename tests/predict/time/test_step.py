"""Time of a step: parts sum, fast equals plain, directions are right, errors speak."""

from dataclasses import replace

import numpy as np
import pytest

from workshop.facts.catalogue import cluster, model
from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.precision import precision
from workshop.facts.run import Run
from workshop.facts.stack import software, stacks
from workshop.predict.case import Setting, setting_of
from workshop.predict.layouts import Layouts
from workshop.predict.pipeline.closed import fullest_stage
from workshop.predict.time.rates import all_rates, rates_for, rates_of
from workshop.predict.time.search import search_seconds, search_steps
from workshop.predict.time.step import CAUSES, predict_step, predict_steps

LLAMA = "llama-3-70b"


def run(devices=64, **layout):
    values = {"shard": devices // 8, "zero": 1, "tensor": 8, "sequence_parallel": True, **layout}
    return Run(LLAMA, f"{devices}xH100", Layout(**values), 1, 8192, accumulation=16)


def random_layouts(count, seed=0):
    draw = np.random.default_rng(seed)
    return Layouts.of_columns(
        tensor=2 ** draw.integers(0, 4, count),
        sequence_parallel=draw.integers(0, 2, count),
        pipeline=draw.integers(1, 40, count),
        virtual_stages=draw.integers(1, 3, count),
        zero=draw.integers(0, 4, count),
        shard=draw.integers(1, 64, count),
        replicate=draw.integers(1, 4, count),
        context=2 ** draw.integers(0, 3, count),
        micro_batch=2 ** draw.integers(0, 4, count),
        accumulation=draw.integers(1, 64, count),
        recompute=draw.integers(0, 3, count),
        seq_len=4096,
    )


@pytest.mark.parametrize("name", [LLAMA, "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("stack", ["megatron-core", "composer", "megatron-2021", "megatron-2022"])
def test_fast_search_is_the_plain_model(name, stack):
    layouts = random_layouts(500)
    setting = Setting(
        model(name), cluster("4096xH100"), precision("megatron-bf16"), rates_of("H100"), software(stack)
    )
    args = (setting, layouts)
    plain = predict_steps(*args)
    np.testing.assert_allclose(search_seconds(*args), plain.seconds, rtol=1e-12)
    for cause in CAUSES:
        np.testing.assert_allclose(
            getattr(search_steps(*args), cause), getattr(plain, cause), rtol=1e-9, atol=1e-12
        )
    assert (plain.seconds > 0).all()


def test_one_at_a_time_is_many_at_once():
    layouts = random_layouts(40, seed=1)
    where, recipe = cluster("4096xH100"), precision("megatron-bf16")
    setting = Setting(model(LLAMA), where, recipe, rates_of("H100"), software("megatron-core"))
    together = predict_steps(setting, layouts).seconds
    alone = [predict_steps(setting, layouts.take(np.array([i]))).seconds[0] for i in range(len(layouts))]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_causes_sum_and_none_is_negative():
    found = predict_step(run())
    assert sum(found.causes.values()) == pytest.approx(found.seconds)
    assert min(found.causes.values()) >= -1e-12
    assert found.low < found.seconds < found.high


def test_utilization_is_what_its_name_says():
    found = predict_step(run(recompute="full"))
    assert found.mfu == pytest.approx(found.tflops_per_rank * 1e12 / 989e12)
    assert 0.2 < found.mfu < found.hfu < 0.8
    assert found.tokens_per_second == pytest.approx(found.tokens / found.seconds)
    assert "MFU" in str(found)
    assert "%" in found.limit


def test_recomputation_costs_time_and_at_most_a_third():
    none, full = predict_step(run()).seconds, predict_step(run(recompute="full")).seconds
    assert 1.15 < full / none < 1.36


def test_directions():
    base = predict_step(run())
    assert predict_step(run(sequence_parallel=False)).seconds > base.seconds  # norms are repeated
    deep = predict_step(run(shard=4, pipeline=2))
    assert deep.causes["bubble"] > 0.01 * deep.seconds
    assert base.causes["bubble"] == pytest.approx(0, abs=1e-9)
    thin = predict_step(run(shard=4, pipeline=2, schedule="interleaved", virtual_stages=4))
    assert thin.causes["bubble"] < deep.causes["bubble"]
    slow = replace(cluster("64xH100"), inter=replace(cluster("64xH100").inter, bytes_per_second=1e9))
    assert predict_step(replace(run(), cluster=slow)).causes["data"] > 3 * base.causes["data"]


def with_software(**choices):
    """Steps of one model on eight A100, by a stack of which something is changed."""
    one = Run("llama-2-7b", "8xA100-80GB", Layout(shard=2, zero=1, tensor=4), 1, 4096, accumulation=4)
    used = replace(software("megatron-2021"), **choices)
    return predict_steps(setting_of(one, used), Layouts.of_runs([one]))


def test_a_host_that_waits_for_each_kernel_adds_its_time_to_the_devices():
    ahead, waiting = with_software(), with_software(blocking_launches=True)
    assert waiting.host > 10 * ahead.host
    assert waiting.seconds - ahead.seconds == pytest.approx(waiting.host - ahead.host, rel=0.1)
    kernels = (
        software("megatron-2021").kernels * 3 * 32 * 4
    )  # forward, twice as many backward; layers, micro-batches
    jitter = 1 + rates_of("A100-80GB").host_jitter * 3
    assert waiting.host == pytest.approx(kernels * rates_of("A100-80GB").host_seconds * jitter, rel=0.05)


def test_a_share_of_the_network_slows_down_what_passes_between_nodes_alone():
    def steps(devices, share):
        one = Run(
            "llama-2-7b", f"{devices}xA100-80GB", Layout(shard=devices, zero=1), 1, 4096, accumulation=4
        )
        used = replace(software("megatron-2021"), network_share=share)
        return predict_steps(setting_of(one, used), Layouts.of_runs([one]))

    assert steps(64, 0.25).data == pytest.approx(4 * steps(64, 1.0).data, rel=0.1)
    assert steps(8, 0.25).seconds == pytest.approx(steps(8, 1.0).seconds)


def test_more_micro_batches_shrink_the_bubble():
    few = predict_step(replace(run(shard=4, pipeline=2), accumulation=4, global_batch=0))
    many = predict_step(replace(run(shard=4, pipeline=2), accumulation=64, global_batch=0))
    assert many.causes["bubble"] / many.seconds < few.causes["bubble"] / few.seconds / 4


def test_every_set_of_constants_is_physical():
    for rates in all_rates().values():
        for share in (
            "sustained",
            "sustained_fp8",
            "attention",
            "matmul_memory",
            "memory",
            "link",
            "network",
            "misaligned",
            "unaligned",
            "unaligned_batched",
        ):
            assert 0.05 < getattr(rates, share) <= 1, (rates.name, share)
        assert 0 < rates.error <= 0.5
    assert len(stacks()) >= 8


def test_unknown_names_are_answered_with_known_ones():
    with pytest.raises(ValueError, match="did you mean 'H100'"):
        rates_of("H10")
    with pytest.raises(ValueError, match="megatron-core"):
        software("megatron-cor")
    with pytest.raises(ValueError, match="unknown column"):
        Layouts.of_columns(tensors=1)


def test_a_calibrated_machine_has_constants():
    here = replace(cluster("8xH100").device, name="this-machine", reachable_flops={"bf16": 1e11})
    assert rates_for(here).sustained == 1


def test_input_gradients_are_reduced_beside_the_weights_gradients():
    """Hidden where the weights' product is long enough, in backward only, and for what contention leaves."""
    layouts = Layouts.of_columns(tensor=[8], micro_batch=[4], seq_len=2048)
    stack = replace(software("megatron-2021"), overlap_input_gradient=False)

    def tensor_seconds(contention, overlap):
        rates = replace(rates_of("A100-80GB"), contention=contention)
        setting = Setting(
            model(LLAMA),
            cluster("8xA100-80GB"),
            precision("megatron-fp16"),
            rates,
            replace(stack, overlap_input_gradient=overlap),
        )
        return predict_steps(setting, layouts).tensor[0]

    waits = tensor_seconds(0.5, False)
    assert tensor_seconds(1.0, True) == pytest.approx(waits)
    assert tensor_seconds(0.0, True) == pytest.approx(waits / 2)  # two of four all-reduces
    assert tensor_seconds(0.5, True) == pytest.approx(waits * 3 / 4)


def steps_of(layouts, stack, **constants):
    rates = replace(rates_of("H100"), **constants)
    setting = Setting(model(LLAMA), cluster("64xH100"), precision("megatron-bf16"), rates, stack)
    return predict_steps(setting, layouts)


def test_tokens_are_gathered_while_a_rank_multiplies_its_own():
    """Only where activations are cut along the sequence; at most half of what is communicated, each way."""
    layouts = Layouts.of_columns(
        tensor=[4, 4, 8], sequence_parallel=[1, 0, 1], micro_batch=[4, 4, 4], seq_len=4096
    )
    stack = replace(software("nanotron"), overlap_shard=False)
    waits = replace(stack, overlap_input_gradient=False)
    none, late, both = (
        steps_of(layouts, used, contention=0.0).tensor
        for used in (waits, stack, replace(stack, overlap_shard=True))
    )
    assert late[1] == both[1] < none[1]
    assert (none[[0, 2]] / 4 <= both[[0, 2]]).all()
    assert (both[[0, 2]] < none[[0, 2]]).all()
    assert both[2] / none[2] > both[0] / none[0]  # a share is smaller among more ranks


def test_a_gradient_that_is_gathered_is_waited_for():
    """Cut along the sequence half of the bytes are gathered, and only the sum hides behind weights' products."""
    layouts = Layouts.of_columns(tensor=8, sequence_parallel=[0, 1], micro_batch=4, seq_len=4096)
    stack = replace(software("megatron-core"), overlap_tensor=0, overlap_shard=False)
    waits, hides = (
        steps_of(layouts, replace(stack, overlap_input_gradient=overlap), contention=0.0).tensor
        for overlap in (False, True)
    )
    assert 1 - hides[0] / waits[0] == pytest.approx(1 / 2, rel=0.05)  # two of four all-reduces
    assert 1 - hides[1] / waits[1] == pytest.approx(1 / 4, rel=0.05)  # two of eight halves


def test_what_a_stage_passes_on_hides_with_virtual_stages_alone():
    layouts = Layouts.of_columns(pipeline=4, virtual_stages=[1, 4], accumulation=16, seq_len=4096)
    stack = software("megatron-core")
    waits, hides = (
        steps_of(layouts, replace(stack, overlap_pipeline=overlap)).pipeline for overlap in (False, True)
    )
    assert hides / waits == pytest.approx([1.0, 0.2])


def test_a_send_that_takes_longer_than_a_chunks_pass_is_waited_for():
    """The rate that was timed counts between nodes alone: the last layout's stages share one."""
    layouts = Layouts.of_columns(
        shard=[8, 8, 1], pipeline=[16, 16, 4], virtual_stages=[1, 8, 1], accumulation=64, seq_len=8192
    )
    stack = replace(software("megatron-core"), overlap_pipeline=True)
    usual, slow, slower = (
        steps_of(layouts, replace(stack, passes_rate=rate)).pipeline for rate in (0.0, 2e9, 1e9)
    )
    assert slower[0] / slow[0] == pytest.approx(2, rel=0.01)  # without virtual stages all of it is waited for
    assert slower[1] > 2 * slow[1] > 2 * usual[1]  # of both the same pass is taken off
    assert slower[2] == slow[2] == usual[2] > 0


def test_weights_in_8_bits_are_gathered_in_half_the_time():
    """Sharded ones for every pass, new ones once a step; in a run in 16 bits the switch says nothing."""
    layouts = Layouts.of_columns(shard=[512, 512], zero=[3, 1], micro_batch=1, seq_len=256)
    stack = replace(software("megatron-bridge"), overlap_gradients=False)

    def data(numbers, quantized):
        used = replace(stack, gathers_quantized=quantized)
        rates = rates_of("H100")
        setting = Setting(model(LLAMA), cluster("512xH100"), precision(numbers), rates, used)
        return predict_steps(setting, layouts).data

    assert (data("megatron-fp8", True) < 0.85 * data("megatron-fp8", False)).all()
    assert (data("megatron-bf16", True) == data("megatron-bf16", False)).all()


def test_what_the_optimizers_step_gathers_nothing_hides():
    layouts = Layouts.of_columns(shard=[64, 1], replicate=[1, 64], zero=[1, 0], micro_batch=1, seq_len=4096)
    stack = software("nanotron")
    waits, hides = (
        steps_of(layouts, replace(stack, gathers_at_once=at_once)).data for at_once in (True, False)
    )
    assert waits[0] > hides[0]
    assert waits[1] == hides[1]  # without ZeRO nothing is gathered


def test_without_zero_all_of_the_all_reduce_falls_into_backward():
    """A short backward hides half as much of it as forward and backward would hide of the two halves."""
    layouts = Layouts.of_columns(shard=[64, 1], replicate=[1, 64], zero=[1, 0], micro_batch=1, seq_len=128)
    stack = replace(software("nanotron"), gathers_at_once=False, gradient_bytes=2)
    shared, alone = steps_of(layouts, stack).data
    assert alone > shared


def test_balanced_stages_make_up_for_the_head():
    """nanotron's blocks: with a head of three layers and a half, sixteen layers are cut into ten and six."""
    small = model("gpt-30m")
    layer = sum(linear.weights for linear in small.linears())
    deep = small.resized(num_layers=16, vocab_size=round(3.5 * layer / small.hidden_size))
    layouts = Layouts.of_columns(pipeline=[1, 2, 4, 2], virtual_stages=[1, 1, 1, 4])
    assert fullest_stage(deep, layouts).tolist() == [16, 8, 4, 8]
    assert fullest_stage(deep, layouts, balanced=True).tolist() == [16, 10, 5, 8]
    four = small.resized(num_layers=16, vocab_size=round(4 * layer / small.hidden_size))
    assert fullest_stage(four, layouts, balanced=True).tolist() == [16, 10, 5, 8]  # a share that is reached


def test_the_head_is_as_wide_as_the_program_pads_it():
    layout = Layout(shard=8, zero=1)

    def seconds(words, multiple):
        how = replace(implementation("torch"), vocab_multiple=multiple)
        small = replace(model("gpt2"), vocab_size=words)
        return predict_step(Run(small, "8xH100", layout, 16, 1024, implementation=how)).seconds

    assert seconds(50_257, 128) == pytest.approx(seconds(50_304, 1), rel=1e-4)
    assert seconds(50_257, 1) > 1.02 * seconds(50_304, 1)  # an odd number of columns is slow
    assert seconds(50_257, 8) < seconds(50_257, 1)
