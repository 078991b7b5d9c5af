"""Every field of a run is modelled, or refused, or listed with the reason why it has no effect."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

from workshop.facts.implementation import Implementation
from workshop.facts.layout import CONTEXT_METHODS, OFFLOAD, RECOMPUTE_MODULES, SCHEDULES, Layout
from workshop.facts.model import ModelSpec
from workshop.facts.precision import MOMENTS, RECIPES
from workshop.facts.run import Adapter, Run
from workshop.predict.case import NotPredictable
from workshop.predict.memory import predict_memory
from workshop.predict.time.step import predict_step
from workshop.predict.traffic import predict_traffic

REFUSED = "refused"
SAME_BYTES = "what is sent depends on the layout and the batch, not on the device"
ONE_REPLICA = "a replica holds what each other replica holds"
ORDER = "the same messages, in another order"
AGAIN_ONCE = "each layer is run again once, however many share a kept input"
FLASH = "flash attention keeps queries, keys, values and a number a row, whoever attends to whom"
UPDATE = "the update is the rank's own; gradients are reduced as before"


@dataclass(frozen=True)
class Change:
    """Fields before and after; for each quantity "" (it must move), `REFUSED`, or why it stays."""

    before: dict[str, Any]
    after: dict[str, Any]
    memory: str = ""
    time: str = ""
    traffic: str = ""


def with_adapter(**values):
    return {"adapter": Adapter(**{"targets": ("all",), **values})}


def of_adapter(**after):
    return Change(with_adapter(), with_adapter(**after), traffic=REFUSED)


MOE = {"model": "mixtral-8x7b", "sequence_parallel": True}
T5 = ModelSpec("t5", 24, 1024, 16, 32_128, num_encoder_layers=24, gated_mlp=False, tied_embeddings=True)
LONG = {"recompute": "full"}
CHANGES = {
    "Run.model": Change({}, {"model": "llama-2-7b"}),
    "Run.cluster": Change({}, {"device": "A100-80GB"}, traffic=SAME_BYTES),
    "Run.layout": Change({}, {"tensor": 4}),
    "Run.micro_batch": Change({}, {"micro_batch": 2}),
    "Run.seq_len": Change({}, {"seq_len": 8192}),
    "Run.global_batch": Change({"accumulation": 2}, {"accumulation": 0, "global_batch": 64}),
    "Run.accumulation": Change({"accumulation": 2}, {"accumulation": 8}),
    "Run.optimizer": Change({}, {"optimizer": "sgd"}, traffic=UPDATE),
    "Run.adapter": Change({}, with_adapter(), traffic=REFUSED),
    "Run.target_len": Change(
        {"model": T5, "pipeline": 1, "seq_len": 512},
        {"model": T5, "pipeline": 1, "seq_len": 512, "target_len": 128},
        time=REFUSED,
        traffic=REFUSED,
    ),
    "Run.implementation": Change({}, {"implementation": "torch"}),
    "Run.document_len": Change({}, {"document_len": 512}, memory=FLASH, traffic="no token is sent less"),
    "Layout.replicate": Change({}, {"replicate": 4}, memory=ONE_REPLICA),
    "Layout.shard": Change({}, {"shard": 4}),
    "Layout.zero": Change({}, {"zero": 3}),
    "Layout.tensor": Change({}, {"tensor": 4}),
    "Layout.sequence_parallel": Change({}, {"sequence_parallel": True}),
    "Layout.pipeline": Change({}, {"pipeline": 2}),
    "Layout.schedule": Change({"accumulation": 8}, {"accumulation": 8, "schedule": "zb-h2"}, traffic=ORDER),
    "Layout.virtual_stages": Change({}, {"virtual_stages": 2}),
    "Layout.context": Change({}, {"context": 2}),
    "Layout.context_method": Change({"context": 2}, {"context": 2, "context_method": "ulysses"}),
    "Layout.expert": Change(MOE, {**MOE, "expert": 2}),
    "Layout.expert_tensor": Change({**MOE, "expert": 2}, {**MOE, "expert": 2, "expert_tensor": 1}),
    "Layout.recompute": Change({}, {"recompute": "full"}),
    "Layout.recompute_every": Change(
        LONG, {**LONG, "recompute_every": 2}, time=AGAIN_ONCE, traffic=AGAIN_ONCE
    ),
    "Layout.recompute_layers": Change(LONG, {**LONG, "recompute_layers": 3}),
    "Layout.recompute_modules": Change(
        {"recompute": "selective"}, {"recompute": "selective", "recompute_modules": ("mlp",)}, traffic=REFUSED
    ),
    "Layout.precision": Change({}, {"precision": "fp32"}),
    "Layout.offload": Change({}, {"offload": "optimizer"}, traffic=REFUSED),
    "Layout.first_stage_layers": Change({}, {"first_stage_layers": 5}),
    "Layout.last_stage_layers": Change({}, {"last_stage_layers": 5}),
    "Layout.embedding_in_stages": Change({}, {"embedding_in_stages": True}),
    "Adapter.method": of_adapter(method="adapter-v2"),
    "Adapter.rank": of_adapter(rank=64),
    "Adapter.targets": of_adapter(targets=("q", "v")),
    "Adapter.base_bits": of_adapter(base_bits=4.5),
    "Adapter.num_trainable": of_adapter(num_trainable=10**8),
    "Adapter.weight_bytes": of_adapter(weight_bytes=4.0),
}


def run_of(**changes):
    values = {
        "model": "llama-3-8b",
        "device": "H100",
        "accumulation": 4,
        "micro_batch": 1,
        "seq_len": 4096,
        "implementation": "megatron",
        "replicate": 2,
        "shard": 2,
        "zero": 1,
        "tensor": 2,
        "pipeline": 4,
        "precision": "megatron-bf16",
    } | changes
    names = {f.name for f in fields(Layout)}
    layout = Layout(**{name: value for name, value in values.items() if name in names})
    rest = {name: value for name, value in values.items() if name not in names and name != "device"}
    return Run(cluster=f"{layout.world_size}x{values['device']}", layout=layout, **rest)


def answer(quantity, run):
    """What is predicted, as something that can be compared, and with no name of the cluster in it."""
    try:
        if quantity == "memory":
            found = predict_memory(run)
            return {part: np.round(sizes).tolist() for part, sizes in found.parts.items()}
        if quantity == "time":
            return predict_step(run).causes
        return [row for rows in predict_traffic(run).stages for row in rows]
    except NotPredictable as reason:
        return REFUSED if "not predicted" in str(reason) else f"a refusal that does not say so: {reason}"


def test_every_field_is_placed():
    here = {f"{kind.__name__}.{f.name}" for kind in (Run, Layout, Adapter) for f in fields(kind)}
    assert set(CHANGES) == here, "place the new field: what does it move, or why does it not?"


@pytest.mark.parametrize("quantity", ["memory", "time", "traffic"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_field_moves_the_answer_or_says_why_not(name, quantity):
    change = CHANGES[name]
    before, after = (answer(quantity, run_of(**values)) for values in (change.before, change.after))
    expected = getattr(change, quantity)
    if expected == REFUSED:
        assert after == REFUSED
    elif expected:
        assert after == before != REFUSED
    else:
        assert REFUSED not in (before, after)
        assert after != before


def step_and_memory(**values):
    run = run_of(**values)
    return predict_step(run).seconds, int(predict_memory(run).allocated.max())


def test_schedules_have_their_own_time_and_memory():
    found = {
        name: step_and_memory(
            accumulation=8,
            schedule=name,
            virtual_stages=2 if name in ("interleaved", "breadth-first") else 1,
        )
        for name in SCHEDULES
    }
    assert len(set(found.values())) == len(SCHEDULES)
    seconds = {name: value[0] for name, value in found.items()}
    assert seconds["naive"] > 2 * seconds["1f1b"]
    assert seconds["gpipe"] == pytest.approx(seconds["1f1b"], rel=1e-9)
    assert seconds["zbv"] < seconds["zb-h2"] < seconds["zb-h1"] < seconds["1f1b"]
    assert seconds["interleaved"] < seconds["1f1b"]


def test_context_methods_have_their_own_memory_time_and_traffic():
    """A ring hides under attention and holds one block; gathered keys are waited for, and held."""
    found = {name: run_of(context=4, context_method=name, seq_len=32_768) for name in CONTEXT_METHODS}
    memory = {name: int(predict_memory(run).allocated.max()) for name, run in found.items()}
    seconds = {name: predict_step(run).causes["context"] for name, run in found.items()}
    sent = {name: predict_traffic(run).by_axis()["context"] for name, run in found.items()}
    assert memory["ring"] < min(memory["ulysses"], memory["all_gather"])
    assert seconds["ring"] < seconds["ulysses"] < seconds["all_gather"]
    assert sent["ring"] == sent["all_gather"]  # three quarters of all keys, twice, and of their gradients
    # Ulysses on 4 ranks: 3/4 of q, k, v and the result; the ring: 3 blocks of k and v, three times.
    assert sent["ulysses"] / sent["ring"] == pytest.approx(2 * (32 + 8 + 8 + 32) * 3 / 4 / (3 * 3 * (8 + 8)))
    with pytest.raises(ValueError, match="Ulysses cuts heads"):
        run_of(model="gpt2", tensor=1, pipeline=1, context=8, context_method="ulysses", seq_len=1024)
    with pytest.raises(ValueError, match=r"context method.*ulysses"):
        Layout(context=2, context_method="ulises")


def test_optimizers_have_their_own_time():
    seconds = {name: predict_step(run_of(optimizer=name)).causes["optimizer"] for name in MOMENTS}
    assert seconds["none"] == 0
    assert seconds["sgd"] < seconds["sgd-momentum"] < seconds["adamw"] < seconds["muon"]
    assert seconds["adamw-8bit"] < seconds["adamw"] == seconds["adam"]
    assert seconds["lion"] == seconds["sgd-momentum"]


@pytest.mark.parametrize("module", RECOMPUTE_MODULES)
def test_every_module_that_is_not_kept_is_made_again(module):
    spec = "deepseek-v3" if module in ("mla_up_proj", "latent") else "mixtral-8x7b"
    spec = "llama-3-8b" if module.startswith("mlp") else spec
    values = {"model": spec, "recompute": "selective", "tensor": 1, "replicate": 1, "seq_len": 2048}
    again = predict_step(run_of(**values, recompute_modules=(module,))).causes["recompute"]
    full = predict_step(run_of(**{**values, "recompute": "full"})).causes["recompute"]
    if module == "shared_experts":
        assert again == 0  # mixtral has none
    else:
        assert 0 < again < full


def test_unknown_modules_are_refused():
    with pytest.raises(ValueError, match=r"module to recompute.*core_attn"):
        Layout(recompute="selective", recompute_modules=("core_atn",))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_time(name):
    device = "B200" if "fp4" in name else "H100"
    assert predict_step(run_of(precision=name, device=device)).seconds > 0


@pytest.mark.parametrize("tier", OFFLOAD[1:])
def test_offload_costs_what_the_link_is_slow(tier):
    base, away = predict_step(run_of()), predict_step(run_of(offload=tier))
    assert away.seconds > base.seconds
    assert away.causes["offload"] > 0
    assert (away.causes["optimizer"] > base.causes["optimizer"]) == (tier != "activations")
    with pytest.raises(NotPredictable, match="the host is the device"):
        here = Run("gpt-30m", "this-machine", Layout(offload=tier), 1, 256)
        predict_step(here)


def test_frozen_weights_have_no_gradient():
    whole, lora = predict_step(run_of()), predict_step(run_of(adapter=Adapter(rank=1, targets=("q",))))
    assert lora.causes["matmul"] / whole.causes["matmul"] == pytest.approx(2 / 3, abs=0.03)
    assert lora.causes["optimizer"] < whole.causes["optimizer"] / 1000
    quantized = predict_step(run_of(adapter=Adapter(rank=1, targets=("q",), base_bits=4.5)))
    assert quantized.causes["pointwise"] > lora.causes["pointwise"]
    with pytest.raises(NotPredictable, match="prompts"):
        predict_step(run_of(adapter=Adapter("adapter")))


def test_a_schedule_that_cannot_run_is_refused():
    for values, words in (
        ({"schedule": "zbv", "accumulation": 4}, "at least 8 micro-batches"),
        ({"virtual_stages": 2, "accumulation": 6}, "try 8"),
        ({"schedule": "gpipe", "virtual_stages": 2}, "fixed placement"),
    ):
        with pytest.raises(NotPredictable, match=words):
            predict_step(run_of(**values))


def test_lengths_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="no encoder"):
        run_of(target_len=128)
    with pytest.raises(ValueError, match="packed whole"):
        run_of(document_len=8192)


def test_an_implementation_nobody_counted_is_refused():
    run = replace(run_of(), implementation=Implementation(name="mine"))
    with pytest.raises(NotPredictable, match=r"'mine'.*torchtitan.*stack="):
        predict_step(run)
    assert predict_step(run, "torchtitan").seconds > 0
    unfused = replace(run_of().implementation, attention="unfused")
    slower = predict_step(replace(run_of(), implementation=unfused))
    assert slower.causes["attention"] > predict_step(run_of()).causes["attention"]


def test_a_cut_of_experts_is_nothing_to_a_model_without_any():
    sharded = {"pipeline": 1, "tensor": 1, "replicate": 1, "shard": 8, "zero": 3, "implementation": "torch"}
    plain, cut = ({**sharded, "expert_tensor": et} for et in (0, 3))
    for quantity in ("memory", "time", "traffic"):
        assert answer(quantity, run_of(**plain)) == answer(quantity, run_of(**cut)) != REFUSED
