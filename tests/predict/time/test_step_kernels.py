"""Profiles of training: what is taken from them is what they say, and what they say is plausible."""

from dataclasses import replace

import pytest

from benchmarks import step_kernels
from workshop.facts.catalogue import device
from workshop.facts.layout import Layout
from workshop.facts.microbenchmarks import expert_launches, host_of_experts
from workshop.facts.run import Run
from workshop.facts.stack import Software, software
from workshop.predict.time.rates import rates_of
from workshop.predict.time.step import predict_step


@pytest.mark.parametrize("name", ["GB200", "B200", "GB300", "B300"])
def test_a_step_keeps_what_the_profiles_say(name):
    for constant, value in step_kernels.shares().items():
        assert getattr(rates_of(name), constant) == pytest.approx(value, rel=0.005), constant


def test_a_host_launches_for_experts_what_the_profiles_say():
    for field, value in step_kernels.counts().items():
        assert getattr(Software("any"), field) == pytest.approx(value, rel=0.02), field


def test_8_bits_take_a_host_longer_by_about_what_they_launch():
    """Two products of an expert forward, and a third of its four casts: what was timed is a little more."""
    launched = (2 + 4 / 3) / 2
    assert launched < Software("any").host_in_8_bits < 1.1 * launched


def test_launches_are_those_of_the_source():
    """Four casts and two gradients of weights for each expert, forward and backward; 12 casts beside them in
    a layer with experts, 13 in one without.
    """
    first, other, gradients = expert_launches()
    mixture = 4 * other.experts + 12
    assert other.launches == other.layers * mixture
    plain = first.layers - first.mixture_layers
    assert first.launches == plain * 13 + first.mixture_layers * mixture
    assert gradients.launches / gradients.layers == pytest.approx(2 * gradients.experts, rel=0.05)


def test_no_kernel_outruns_the_memory():
    for row in step_kernels.step_kernels():
        assert row.bytes / row.seconds < device(row.device).memory_bandwidth


def test_experts_are_a_part_of_their_layer_and_products_of_them():
    parts = {row.part: row.unprofiled for row in host_of_experts()}
    assert 2 * parts["product"] < parts["experts"] < parts["layer"]


def test_a_b200_takes_a_launch_as_it_was_counted():
    assert rates_of("B200").host_seconds == rates_of("A100-80GB").host_seconds


def test_a_b300s_host_launches_by_its_clock():
    assert rates_of("B300").host_seconds == pytest.approx(
        rates_of("B200").host_seconds * 4.0 / 4.6, rel=0.005
    )


def test_a_host_takes_longer_in_8_bits_only():
    stack = software("megatron-bridge")
    run = Run("qwen3-30b-a3b", "8xB200", Layout(shard=8, zero=1, expert=8), 1, 256, implementation="megatron")

    def waits(precision, longer):
        here = replace(run, layout=replace(run.layout, precision=precision))
        return predict_step(here, replace(stack, host_in_8_bits=longer)).causes["host"]

    assert waits("megatron-fp8", 1.82) > waits("megatron-fp8", 1.0)
    assert waits("megatron-bf16", 1.82) == waits("megatron-bf16", 1.0)
