"""Which engine a layout gets, and what is refused before any rank starts, with what would do."""

from dataclasses import replace

import pytest

from workshop import launch
from workshop.facts import catalogue
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.parallel.pipeline import RUN_BY_HAND
from workshop.predict.pipeline.orders import CLASSIC
from workshop.train import train
from workshop.train.settings import ENGINES, Settings, check_run, choose_engine

SMALL = catalogue.model("gpt-1m")


@pytest.mark.parametrize(
    ("layout", "engine"),
    [
        (Layout(precision="fp32"), "plain"),
        (Layout(), "fsdp"),  # fsdp-bf16 is FSDP2's own, cut or not
        (Layout(replicate=4, precision="amp-bf16"), "ddp"),
        (Layout(shard=4, zero=1, precision="fp32"), "deepspeed"),
        (Layout(shard=4, zero=2), "fsdp"),
        (Layout(replicate=2, shard=2, zero=3), "fsdp"),
        (Layout(shard=4, zero=3, precision="deepspeed-bf16"), "deepspeed"),
        (Layout(shard=4, zero=2, precision="fp32", offload="optimizer"), "deepspeed"),
    ],
)
def test_the_engine_follows_from_stage_and_precision(layout, engine):
    assert choose_engine(layout) == engine


@pytest.mark.parametrize(
    ("layout", "engine", "words"),
    [
        (
            Layout(tensor=2, shard=2, zero=1, precision="fp32"),
            "auto",
            "tensor = 2: deepspeed wants the whole model",
        ),
        (Layout(pipeline=2, precision="fp32"), "zero", "pipeline = 2: zero wants the whole model"),
        (Layout(tensor=2, precision="amp-fp16"), "auto", "'amp-fp16' with tensor = 2: .*use 'amp-bf16'"),
        (Layout(context=2, zero=3, offload="params"), "auto", "offload 'params' with context = 2"),
        (Layout(context=2, precision="fp32"), "plain", "2 ranks that share a batch: plain averages no"),
        (
            Layout(pipeline=2, schedule="zb-h1", precision="fp32"),
            "auto",
            "schedule 'zb-h1': train.. runs naive, gpipe",
        ),
        (
            Layout(pipeline=2, embedding_in_stages=True, precision="fp32"),
            "auto",
            "every stage here has a layer",
        ),
        (Layout(shard=2, expert=2), "auto", "expert = 2: .*parallel.expert does it to a model"),
        (Layout(precision="fp32", offload="optimizer"), "auto", "only stages 1 to 3 offload the optimizer"),
        (Layout(precision="megatron-fp8"), "auto", "'megatron-fp8': no engine here trains in it yet"),
        (
            Layout(precision="fsdp-bf16", replicate=2),
            "ddp",
            "'fsdp-bf16': it is fsdp's; ddp trains in fp32, amp-bf16",
        ),
        (Layout(shard=2, zero=3, precision="fp32"), "ddp", "zero = 3: ddp does stage 0"),
        (
            Layout(shard=2, zero=3, offload="optimizer", precision="fp32"),
            "fsdp",
            "'optimizer': fsdp knows none, params",
        ),
        (Layout(replicate=2, shard=2, zero=2, precision="fp32"), "zero", r"zero takes Layout\(shard=4\)"),
        (Layout(replicate=2, precision="fp32"), "plain", "2 ranks that share a batch"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(layout, engine, words):
    with pytest.raises(ValueError, match=words):
        choose_engine(layout, engine)


def test_a_cut_model_goes_with_the_engine_of_its_data_axes():
    assert choose_engine(Layout(tensor=2, precision="fp32")) == "plain"
    assert choose_engine(Layout(pipeline=2, replicate=2, precision="fp32")) == "ddp"
    assert choose_engine(Layout(context=2, precision="fp32")) == "ddp"  # its ranks hold the same weights
    assert choose_engine(Layout(tensor=2, shard=2, zero=3, precision="fp32")) == "fsdp"
    assert choose_engine(Layout(tensor=2)) == "fsdp"


def test_an_implementation_names_its_engine():
    layout = Layout(shard=2, zero=3, precision="fp32")
    assert choose_engine(layout) == "fsdp"
    assert choose_engine(layout, library="deepspeed") == "deepspeed"
    run = Run(SMALL, "this-machine", layout, seq_len=32, implementation="deepspeed")
    assert check_run(run, Settings()).engine == "deepspeed"
    assert check_run(run, Settings(engine="zero")).engine == "zero"  # who names one gets it


@pytest.mark.parametrize(
    ("change", "layout", "more", "words"),
    [
        ({"num_kv_heads": 2}, {"tensor": 4}, {}, "num_kv_heads = 2 does not divide by tensor = 4"),
        ({}, {"tensor": 3}, {}, "num_heads = 4 does not divide by tensor = 3"),
        ({"vocab_size": 257}, {"tensor": 2}, {}, "vocab_size = 257 does not divide by tensor = 2"),
        ({}, {"pipeline": 4}, {}, "needs 4 layers, and gpt-1m has 2"),
        ({}, {"tensor": 2, "sequence_parallel": True}, {"seq_len": 33}, "seq_len on a context rank = 33"),
        ({}, {"context": 2}, {"seq_len": 34}, "seq_len = 34 does not divide into 2 x context = 4"),
        ({}, {"tensor": 2}, {"optimizer": "muon"}, "'muon' looks at whole matrices"),
        (
            {"num_layers": 4},
            {"pipeline": 2, "virtual_stages": 2},
            {"accumulation": 3},
            "3 is no multiple of it; try 4",
        ),
        (
            {"num_layers": 4},
            {"pipeline": 4, "first_stage_layers": 3},
            {},
            "3 of gpt-1m's 4 layers leave 1 for 3 other stages",
        ),
        ({"num_layers": 4}, {"pipeline": 2, "virtual_stages": 2, "schedule": "gpipe"}, {}, "takes no chunks"),
    ],
)
def test_what_does_not_divide_is_refused_before_ranks_start(monkeypatch, change, layout, more, words):
    def never(*_, **__):
        raise AssertionError("ranks were started")

    monkeypatch.setattr(launch, "torchrun", never)
    model = replace(SMALL, **change)
    with pytest.raises(ValueError, match=words):
        train(
            Run(model, "this-machine", Layout(**layout, precision="fp32"), **{"seq_len": 32, **more}),
            measured=False,
        )


def test_rules_are_in_one_place():
    from workshop.train.settings import RECIPES

    assert {"auto", *RECIPES} == set(ENGINES)
    assert RUN_BY_HAND is CLASSIC


@pytest.mark.parametrize(
    ("layout", "settings", "words"),
    [
        (
            {"shard": 2, "zero": 2},
            {"engine": "zero", "optimizer": "adafactor"},
            "ZeRO by hand cuts flat tensors",
        ),
        ({"shard": 2, "zero": 2}, {"engine": "zero", "weight_decay": 0.1}, "would decay both"),
        ({"shard": 2, "zero": 3}, {"optimizer": "adafactor"}, "Adafactor does not take sharded weights"),
    ],
)
def test_an_optimizer_that_cannot_is_refused_before_ranks_start(monkeypatch, layout, settings, words):
    def never(*_, **__):
        raise AssertionError("ranks were started")

    monkeypatch.setattr(launch, "torchrun", never)
    run = Run(SMALL, "this-machine", Layout(precision="fp32", **layout), micro_batch=2, seq_len=32)
    with pytest.raises(ValueError, match=words):
        train(run, **settings)
