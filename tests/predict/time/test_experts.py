"""Experts: who brings them their tokens, what is fused, and what that does to a step."""

from dataclasses import replace

import pytest

from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.facts.stack import software
from workshop.predict.time.attention import attention_rates
from workshop.predict.time.step import predict_step

LAYOUT = Layout(shard=8, zero=1, expert=8, precision="megatron-fp8")
RUN = Run("qwen3-30b-a3b", "8xGB200", LAYOUT, 4, 4096, accumulation=4, implementation="megatron")
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


def test_the_bytes_of_a_stash():
    """Inputs of 2,048 and 768 in 8 bits, 1,536 between in 16, of eight experts, each read and written twice."""
    each = causes(stashed_experts=True)["pointwise"] - causes()["pointwise"]
    routed = 8 * RUN.tokens_per_step / 8 * 48
    rate = 8e12 * 0.85
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
