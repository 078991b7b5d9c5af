"""Which engine a run asks for, and what each refuses, in words."""

from __future__ import annotations

import re

import pytest

from tests.configs.cases import run
from workshop.configs import accelerate_yaml, deepspeed_json, engine_of, fsdp_plugin_arguments
from workshop.configs.engines import MIXED_PRECISION
from workshop.facts.layout import Layout
from workshop.facts.precision import RECIPES


@pytest.mark.parametrize(
    ("layout", "engine"),
    [
        (Layout(replicate=8), "ddp"),
        (Layout(shard=8, zero=1), "deepspeed"),
        (Layout(shard=8, zero=2), "fsdp"),
        (Layout(shard=8, zero=3), "fsdp"),
        (Layout(shard=8, zero=3, precision="deepspeed-bf16"), "deepspeed"),
        (Layout(replicate=8, precision="deepspeed-fp16"), "deepspeed"),
    ],
)
def test_the_run_says_the_engine(layout, engine):
    assert engine_of(run(layout)) == engine


def test_an_implementation_says_it_too():
    assert (
        engine_of(run(Layout(shard=8, zero=3, precision="fp32"), implementation="deepspeed")) == "deepspeed"
    )


def test_recipes_are_known_ones():
    assert {recipe for recipes in MIXED_PRECISION.values() for recipe in recipes} <= set(RECIPES)


@pytest.mark.parametrize(
    ("layout", "engine", "told"),
    [
        (Layout(shard=8, zero=3), "fdsp", "unknown engine 'fdsp'; did you mean 'fsdp'"),
        (Layout(tensor=8, zero=0, precision="fp32"), "ddp", "tensor = 8: these engines cut the batch"),
        (Layout(shard=8, pipeline=2, zero=3), "fsdp", "Use pipeline = 1"),
        (Layout(shard=8, zero=3), "ddp", "zero = 3: ddp does stage 0; stage 3 is done by fsdp and deepspeed"),
        (Layout(shard=8, zero=1), "fsdp", "stage 1 is done by deepspeed"),
        (
            Layout(replicate=2, shard=4, zero=3, precision="deepspeed-bf16"),
            None,
            "replicate = 2: DeepSpeed shards over all ranks; use replicate = 1 and shard = 8",
        ),
        (Layout(replicate=8), None, "precision = 'fsdp-bf16' is not ddp's; it trains in fp32, amp-bf16"),
        (Layout(replicate=8, precision="fp32", offload="params"), None, "offload = 'params' is not ddp's"),
        (Layout(shard=8, zero=3, offload="optimizer"), "fsdp", "it has none, params, activations"),
        (Layout(shard=8, zero=3, offload="activations"), "fsdp", 'add recompute = "full"'),
        (
            Layout(shard=8, zero=2, precision="deepspeed-bf16", offload="params"),
            None,
            "only stage 3 offloads weights",
        ),
        (
            Layout(replicate=8, precision="deepspeed-bf16", offload="optimizer"),
            None,
            "only stages 1 to 3 offload the optimizer",
        ),
    ],
)
def test_what_an_engine_cannot_do_is_told(layout, engine, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        accelerate_yaml(run(layout), engine)


def test_all_reasons_are_told_at_once():
    with pytest.raises(ValueError, match=r"(?s)tensor = 2.*stage 1.*precision"):
        fsdp_plugin_arguments(run(Layout(tensor=2, shard=4, zero=1, precision="amp-bf16")))


def test_ranks_must_divide_over_nodes():
    with pytest.raises(ValueError, match="9 ranks do not divide over 2 nodes of 9xH100"):
        accelerate_yaml(run(Layout(replicate=9, precision="amp-bf16")))


def test_deepspeed_refuses_what_is_fsdps():
    with pytest.raises(ValueError, match="precision = 'fsdp-bf16' is not deepspeed's"):
        deepspeed_json(run(Layout(shard=8, zero=3)))


def test_an_optimizer_that_deepspeed_cannot_make():
    with pytest.raises(ValueError, match="DeepSpeed makes no optimizer 'sgd' by name"):
        deepspeed_json(run(Layout(shard=8, zero=1, precision="deepspeed-bf16"), optimizer="sgd"), lr=0.1)
