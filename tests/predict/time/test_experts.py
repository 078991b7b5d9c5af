"""Experts: who brings them their tokens, what is fused, and what that does to a step."""

from dataclasses import replace

import pytest

from workshop.facts.catalogue import cluster, model
from workshop.facts.layout import Layout
from workshop.facts.precision import precision
from workshop.facts.run import Run
from workshop.facts.stack import software
from workshop.predict.case import Setting
from workshop.predict.layouts import Layouts
from workshop.predict.memory import predict_memory
from workshop.predict.time.attention import attention_rates
from workshop.predict.time.matmul import linear_seconds
from workshop.predict.time.rates import rates_of
from workshop.predict.time.step import predict_step

LAYOUT = Layout(shard=8, zero=1, expert=8, precision="megatron-fp8")
RUN = Run("qwen3-30b-a3b", "8xGB200", LAYOUT, 4, 4096, accumulation=4, implementation="megatron")
OSS = model("gpt-oss-20b")
CAPTURED = replace(software("megatron-bridge"), captured_experts=True)


def causes(**choices):
    return predict_step(RUN, replace(CAPTURED, **choices)).causes


def test_what_hides_still_takes_its_multiprocessors():
    exposed, hidden, paid = (
        causes(overlap_expert=share, dispatch_multiprocessors=taken)["expert"]
        for share, taken in ((0.0, 32.0), (0.93, 0.0), (0.93, 32.0))
    )
    assert hidden == pytest.approx(0.07 * exposed)
    assert paid == pytest.approx((0.07 + 0.93 * 32 / 152) * exposed)


def test_an_alltoall_sends_more_and_sorts_more():
    tokens, alltoall = causes(), causes(dispatcher="alltoall")
    assert alltoall["expert"] > 1.2 * tokens["expert"]
    assert alltoall["pointwise"] > 1.1 * tokens["pointwise"]
    assert alltoall["matmul"] == tokens["matmul"]


def test_fused_experts_move_less_and_copies_cost_a_part_of_it():
    plain, fused, stashed = (
        causes(),
        causes(fused_experts=True),
        causes(fused_experts=True, stashed_experts=True),
    )
    assert fused["pointwise"] < stashed["pointwise"] < plain["pointwise"]
    assert fused["matmul"] < plain["matmul"]  # every second cast is saved
    assert stashed["matmul"] == fused["matmul"]


def test_experts_are_multiplied_one_by_one_unless_they_are_fused():
    """Of four tokens each every one reads its weights alone, and starts alone."""
    rates, numbers = rates_of("GB200"), precision("megatron-fp8")
    machine = Setting(model("qwen3-30b-a3b"), cluster("8xGB200"), numbers, rates, CAPTURED).machine
    experts = [linear for linear in model("qwen3-30b-a3b").linears("moe") if linear.copies > 1]
    few = Layouts.of_columns(expert=[8], micro_batch=1, seq_len=64)
    apart, fused = (linear_seconds(experts, few, machine, fused) for fused in (False, True))
    assert apart.forward[0] > fused.forward[0]
    assert apart.weight[0] > 16 * len(experts) * machine.rates.kernel_seconds
    assert apart.columns[0] == 0


def test_the_bytes_of_a_stash():
    """Inputs of 2,048 and 768 in 8 bits, 1,536 between in 16, of eight experts, each read and written twice."""
    each = causes(stashed_experts=True)["pointwise"] - causes()["pointwise"]
    routed = 8 * RUN.tokens_per_step / 8 * 48
    rate = 8e12 * rates_of("GB200").pointwise
    assert each == pytest.approx(routed * 4 * (2048 + 768 + 2 * 1536) / rate, rel=1e-6)


def test_attention_in_8_bits_is_what_was_timed():
    """A GB200 gains forward and loses backward at 4,096 tokens, and gains in both at 16,384."""
    sixteen, eight = (attention_rates("GB200", "flash-3", bits) for bits in (16, 8))
    for length, sign in ((4096, -1), (16384, 1)):
        assert eight.rate(True, "forward", length, 128) > sixteen.rate(True, "forward", length, 128)
        gain = eight.rate(True, "backward", length, 128) - sixteen.rate(True, "backward", length, 128)
        assert sign * gain > 0
    assert causes(attention_bits=8)["attention"] > causes()["attention"]
    on_h100 = replace(RUN, cluster="8xH100")
    same = [predict_step(on_h100, replace(CAPTURED, attention_bits=bits)).seconds for bits in (8, 16)]
    assert same[0] == same[1]  # nobody timed it there


def of_oss(quantity, layout=LAYOUT, model=OSS, **stack):
    run = replace(RUN, model=model, layout=layout)
    return predict_step(run, replace(CAPTURED, **stack)).causes[quantity]


def test_the_bytes_of_biases_and_of_clamps():
    """Of a routed token's 2,880: 28 forward and 40 backward with a weight in 32 bits, 12 and 16 in 16; clamps
    16 and 20. Fused experts have none of them."""
    plain = OSS.resized(mlp_bias=False, clamped_experts=False)
    bandwidth = 8e12 * rates_of("GB200").pointwise
    routed = 24 * RUN.accumulation * 4 * 4096 * 4 * 2880
    for bytes_each, dispatcher, spec in (
        (68, "tokens", OSS.resized(clamped_experts=False)),
        (28, "alltoall", OSS.resized(clamped_experts=False)),
        (36, "tokens", OSS.resized(mlp_bias=False)),
    ):
        with_, without = (of_oss("pointwise", model=m, dispatcher=dispatcher) for m in (spec, plain))
        assert with_ - without == pytest.approx(routed * bytes_each / bandwidth, rel=1e-6)
    fused = {of_oss("pointwise", model=m, fused_experts=True) for m in (OSS, plain)}
    assert len(fused) == 1


def test_clamps_are_made_again_with_the_activation():
    layout = replace(LAYOUT, recompute="selective", recompute_modules=("moe_act",))
    again, plain = (
        of_oss("recompute", layout=layout, model=m) for m in (OSS, OSS.resized(clamped_experts=False))
    )
    assert again / plain == pytest.approx(11 / 3)


def test_clamped_copies_are_kept_unless_made_again():
    layout = replace(LAYOUT, recompute="selective", recompute_modules=("moe_act",))
    for cut, moved in ((LAYOUT, True), (layout, False)):
        run = replace(RUN, model=OSS, layout=cut)
        bare = replace(run, model=OSS.resized(clamped_experts=False))
        assert (predict_memory(run).allocated[0] > 1.02 * predict_memory(bare).allocated[0]) == moved


def test_a_bias_is_launched_for_each_expert():
    short = replace(RUN, micro_batch=1, seq_len=256, global_batch=0)
    few, many = (
        predict_step(replace(short, model=m), software("megatron-bridge")).causes["host"]
        for m in (OSS.resized(mlp_bias=False), OSS)
    )
    assert many > few


def test_a_head_in_8_bits_takes_half_and_its_casts():
    """The head's products; the loss stays as it is. In a run in 16 bits the switch says nothing."""
    here = replace(RUN, model=OSS, cluster="8xH100")
    sixteen = replace(here, layout=replace(LAYOUT, precision="megatron-bf16"))

    def head(run, bits):
        return predict_step(run, replace(CAPTURED, head_bits=bits)).causes["head"]

    assert 0.5 * head(here, 16) < head(here, 8) < 0.85 * head(here, 16)
    assert head(sixteen, 8) == head(sixteen, 16) == head(here, 16)
