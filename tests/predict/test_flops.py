"""FLOPs against counts done by hand and against published formulas."""

import pytest

from workshop.facts.catalogue import model
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.predict.flops import forward_flops, megatron_flops, recomputed_flops, step_flops

TINY = ModelSpec("tiny", 2, 64, 4, 1000, ffn_hidden_size=256, gated_mlp=False)
GROUPED = ModelSpec("grouped", 2, 64, 4, 1000, num_kv_heads=1, ffn_hidden_size=256)


def test_a_dense_layer_by_hand():
    parts = forward_flops(TINY, 128)
    assert parts["attention_projections"] == 2 * 2 * (4 * 64 * 64)
    assert parts["attention_core"] == 2 * (2 * 2 * 128 * 64)
    assert parts["mlp"] == 2 * 2 * (2 * 64 * 256)
    assert parts["head"] == 2 * 64 * 1000


def test_grouped_queries_and_gates_by_hand():
    parts = forward_flops(GROUPED, 128)
    assert parts["attention_projections"] == 2 * 2 * (2 * 64 * 64 + 2 * 64 * 16)
    assert parts["mlp"] == 2 * 2 * (3 * 64 * 256)


def test_causal_halves_only_the_scores():
    full, causal = forward_flops(TINY, 128), forward_flops(TINY, 128, causal=True)
    assert causal["attention_core"] == full["attention_core"] / 2
    assert causal["mlp"] == full["mlp"]


def test_a_window_takes_the_place_of_the_sequence():
    """gpt-oss: every second layer sees 128 keys; Mistral all layers 4,096, which a shorter sequence has not."""
    oss = model("gpt-oss-20b")
    width = 2 * (64 * 64 + 64 * 64)
    assert oss.windowed_layers == 12
    assert forward_flops(oss, 4096)["attention_core"] == 12 * width * (4096 + 128)
    # The first 128 queries see half a window on average, all others a whole one.
    seen = 4096 / 2 + 128 - 128**2 / (2 * 4096)
    assert forward_flops(oss, 4096, causal=True)["attention_core"] == pytest.approx(12 * width * seen)
    mistral = model("mistral-7b")
    whole = mistral.resized(attention_window=0)
    assert mistral.windowed_layers == 32
    assert forward_flops(mistral, 4096) == forward_flops(whole, 4096)
    assert forward_flops(mistral, 4096, causal=True) == forward_flops(whole, 4096, causal=True)
    assert forward_flops(mistral, 8192)["attention_core"] == forward_flops(whole, 4096)["attention_core"]


def test_windows_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="attention_window is one of causal"):
        TINY.resized(attention_window=64, causal=False)
    with pytest.raises(ValueError, match="full_attention_every"):
        TINY.resized(full_attention_every=2)


def test_experts_count_only_those_a_token_visits():
    spec = model("mixtral-8x7b")
    parts = forward_flops(spec, 4096)
    assert parts["experts"] == 32 * 2 * (2 * 3 * 4096 * 14336)
    assert parts["router"] == 32 * 2 * 4096 * 8
    dense = sum(parts.values()) - parts["attention_core"]
    assert dense == pytest.approx(2 * (spec.num_active_params - spec.vocab_size * spec.hidden_size), rel=1e-3)


def test_megatrons_formula_is_ours_for_its_own_models():
    """arXiv 2104.04473, equation 3; its vocabulary term and ours are the same, its attention counts every
    score.
    """
    spec = model("gpt3-175b")
    ours = 3 * sum(forward_flops(spec, 2048).values())
    assert megatron_flops(spec, 2048, 1.0) == pytest.approx(ours, rel=1e-3)
    assert megatron_flops(spec, 2048, 1.0, recompute=True) == pytest.approx(
        ours + sum(forward_flops(spec, 2048).values()) - forward_flops(spec, 2048)["head"], rel=1e-3
    )


def test_six_per_parameter_and_token():
    spec = model("llama-3-70b")
    parts = forward_flops(spec, 8192)
    without_scores = 3 * (sum(parts.values()) - parts["attention_core"])
    assert without_scores == pytest.approx(
        6 * (spec.num_params - spec.vocab_size * spec.hidden_size), rel=1e-4
    )


@pytest.mark.parametrize(
    ("policy", "layers", "ratio"), [("none", 0, 0.0), ("full", 0, 1.0), ("full", 16, 0.5)]
)
def test_recomputation(policy, layers, ratio):
    spec = model("llama-2-7b")
    forward = forward_flops(spec, 4096)
    again = recomputed_flops(spec, Layout(recompute=policy, recompute_layers=layers), 4096)
    assert again == pytest.approx(ratio * (sum(forward.values()) - forward["head"]))


def test_selective_recomputation_repeats_the_scores():
    spec = model("llama-2-7b")
    again = recomputed_flops(spec, Layout(recompute="selective"), 4096)
    assert again == forward_flops(spec, 4096)["attention_core"]


def test_a_step_of_a_run():
    run = Run("llama-2-7b", "8xH100", Layout(shard=8, zero=3, recompute="full"), micro_batch=2, seq_len=4096)
    flops = step_flops(run)
    assert (
        flops.model
        == sum(flops.by_part.values())
        == pytest.approx(3 * sum(forward_flops(run.model, 4096).values()) * 16 * 4096)
    )
    assert 1.3 < flops.hardware / flops.model < 4 / 3
