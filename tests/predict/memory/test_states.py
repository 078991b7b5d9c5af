"""Weights, gradients and optimizer state: exact counts per rank, and the ZeRO stages."""

import numpy as np
import pytest

from workshop.facts import catalogue
from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.precision import precision
from workshop.facts.run import Run
from workshop.facts.stages import stage_layers
from workshop.predict.case import TrainingConfig
from workshop.predict.layouts import Layouts, layers_in_chunk, layers_on_rank
from workshop.predict.memory import predict_memory
from workshop.predict.memory.states import params_held, states

TORCH = implementation("torch")


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "gpt2", "mixtral-8x7b", "deepseek-v3", "bert-base", "qwen3-30b-a3b"]
)
def test_one_rank_holds_every_parameter(name):
    model = catalogue.model(name)
    held = params_held(model, TORCH, Layouts.of_columns())
    assert float((held.dense + held.expert)[0]) == model.num_params


@pytest.mark.parametrize("pipeline", [2, 4])
def test_stages_together_hold_the_model_and_a_second_tied_embedding(pipeline):
    model = catalogue.model("gpt2")
    held = params_held(model, TORCH, Layouts.of_columns(stage=np.arange(pipeline), pipeline=pipeline))
    assert held.dense.sum() == model.num_params + model.vocab_size * model.hidden_size


def test_tensor_ranks_share_matrices_and_repeat_the_rest():
    model = catalogue.model("llama-3.1-8b")
    one, four = (float(params_held(model, TORCH, Layouts.of_columns(tensor=t)).dense[0]) for t in (1, 4))
    norms = (2 * model.num_layers + 1) * model.hidden_size
    assert four == (one - norms) / 4 + norms


def test_vocabulary_is_padded_as_megatron_pads_it():
    model, how = catalogue.model("gpt2"), implementation("megatron")
    held = params_held(model, how, Layouts.of_columns(tensor=2))
    assert float(held.ends[0]) == 50432 * 768 / 2 + 1024 * 768 + 2 * 768


def test_experts_are_divided_over_their_own_groups():
    model = catalogue.model("mixtral-8x7b")
    held = params_held(model, TORCH, Layouts.of_columns(shard=8, expert=4))
    assert float(held.expert[0]) == 8 / 4 * 3 * 4096 * 14336 * 32


def part_bytes(zero, name="megatron-bf16", **sizes):
    model = catalogue.model("llama-2-7b")
    config, place = (
        TrainingConfig(model, TORCH, precision(name)),
        Layouts.of_columns(zero=zero, shard=8, **sizes),
    )
    found = states(config, params_held(model, TORCH, place), place)
    return [float(found[part][0]) / model.num_params for part in ("weights", "gradients", "optimizer")]


def test_zero_stages_divide_what_they_say():
    # arXiv 1910.02054, figure 1, with Megatron's widths: 2 + 4 + 12 bytes.
    assert part_bytes(0) == [2, 4, 12]
    assert part_bytes(1) == [2, 4, 12 / 8]
    assert part_bytes(2) == [2, 4 / 8, 12 / 8]
    assert part_bytes(3) == [2 / 8, 4 / 8, 12 / 8]
    assert part_bytes(3, "deepspeed-bf16") == [2 / 8, 2 / 8, 12 / 8]


def test_context_ranks_divide_state_too():
    assert part_bytes(1, context=2)[2] == 12 / 16


LAYOUTS = [
    Layout(pipeline=4),
    Layout(pipeline=4, virtual_stages=3),
    Layout(pipeline=5),
    Layout(pipeline=4, first_stage_layers=2, last_stage_layers=2),
    Layout(pipeline=4, virtual_stages=2, embedding_in_stages=True),
    Layout(pipeline=8, last_stage_layers=5),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"p{layout.pipeline}v{layout.virtual_stages}")
@pytest.mark.parametrize("name", ["deepseek-v3", "gpt3-125m", "llama-4-maverick"])
def test_array_form_of_stages_equals_the_plain_one(layout, name):
    model = catalogue.model(name).resized(num_layers=30)
    kinds, place = (
        model.layer_kinds(),
        Layouts.of_stages(Run(model, f"{layout.pipeline}xH100", layout, seq_len=128, accumulation=8)),
    )
    for stage in range(layout.pipeline):
        plain = stage_layers(model.num_layers, layout, stage)
        for chunk, layers in enumerate(plain):
            found = layers_in_chunk(model, place, chunk)
            assert int(found["moe"][stage]) == sum(kinds[layer] == "moe" for layer in layers)
            assert int(found["dense"][stage]) == sum(kinds[layer] == "dense" for layer in layers)
    assert sum(int(count.sum()) for count in layers_on_rank(model, place).values()) == model.num_layers


def test_an_encoder_decoder_holds_both_stacks():
    model = catalogue.model("gpt2").resized(name="t5", num_encoder_layers=12)
    held = params_held(model, TORCH, Layouts.of_columns())
    assert float(held.dense[0]) == model.num_params
    run = Run(model, "A100-80GB", micro_batch=64, seq_len=512, target_len=128)
    alone = Run("gpt2", "A100-80GB", micro_batch=64, seq_len=512)
    both, decoder = (predict_memory(r).parts["activations"][0] for r in (run, alone))
    # Twelve encoder layers of 512 tokens, twelve decoder layers of 128 and their cross attention.
    assert decoder < both < 2 * decoder


def test_multi_token_prediction_adds_a_layer_to_the_last_stage():
    model = catalogue.model("deepseek-v3")
    more = model.resized(num_mtp_layers=1)
    assert more.num_params - model.num_params == model.mtp_params()
    place = Layouts.of_columns(stage=np.arange(2), pipeline=2)
    gain = [
        float(
            np.ravel(
                getattr(params_held(more, TORCH, place), part)
                - getattr(params_held(model, TORCH, place), part)
            ).sum()
        )
        for part in ("dense", "expert")
    ]
    assert sum(gain) == model.mtp_params() + model.vocab_size * model.hidden_size


@pytest.mark.parametrize(("stage", "on_device"), [(1, 2.0), (2, 0.0), (3, 0.0)])
def test_an_offloaded_optimizer_takes_the_reduced_gradients_along(stage, on_device):
    """DeepSpeed copies them to the host as it reduces them; stage 1 has whole ones on the device first."""
    layout = Layout(shard=8, zero=stage, precision="deepspeed-bf16", offload="optimizer")
    run = Run("llama-2-7b", "8xH100", layout, seq_len=128, implementation=implementation("deepspeed"))
    parts = predict_memory(run).parts
    assert float(parts["gradients"][0]) == pytest.approx(on_device * catalogue.model("llama-2-7b").num_params)
    assert float(parts["optimizer"][0]) == 0
