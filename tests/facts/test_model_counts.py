"""Parameters equal those of the real models, to the last one."""

import pytest

from workshop.facts import catalogue
from workshop.facts.model import ModelSpec

# Counts of the published checkpoints; test_model_modules.py builds many of them on the meta device.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v3": 671_026_419_200,
    "smollm2-135m": 134_515_008,
    "smollm2-1.7b": 1_711_376_384,
    "phi-1.5": 1_418_270_720,
    "bloom-176b": 176_247_271_424,
    "falcon-7b": 6_921_720_704,
    "gemma-2b": 2_506_172_416,
    "gpt-oss-120b": 116_829_156_672,
    "bert-base": 109_514_298,
    "pythia-6.9b": 6_857_302_016,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_count_is_the_published_one(name, count):
    assert catalogue.model(name).num_params == count


@pytest.mark.parametrize("name", sorted(catalogue.models()))
def test_parts_sum_to_the_whole_and_active_is_less(name):
    spec = catalogue.model(name)
    assert sum(spec.params_by_part().values()) == spec.num_params
    assert (spec.num_active_params < spec.num_params) == spec.is_moe


def test_active_parameters_of_a_mixture():
    spec = catalogue.model("mixtral-8x7b")
    idle = 6 * 3 * 4096 * 14336 * 32  # six of eight experts, three matrices each, 32 layers
    assert spec.num_params - spec.num_active_params == idle


def test_megatron_table_within_half_a_percent_of_its_rounding():
    # arXiv 2104.04473, table 1 prints billions to one decimal.
    for name, billions in {"1.7b": 1.7, "18b": 18.4, "145b": 145.6, "530b": 529.6, "1t": 1008.0}.items():
        assert abs(catalogue.model(f"megatron-{name}").num_params / 1e9 - billions) < 0.051


def test_usual_values_are_filled_in():
    spec = ModelSpec("m", 2, 64, 4, 100)
    assert (spec.head_dim, spec.num_kv_heads, spec.ffn_hidden_size) == (16, 4, 256)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_layers": 0}, "num_layers must be a whole number of at least 1, not 0"),
        ({"num_layers": -3}, "not -3"),
        ({"num_heads": 5}, "hidden_size = 64 does not divide by num_heads = 5"),
        ({"num_kv_heads": 3}, "num_heads = 4 is not a multiple of num_kv_heads = 3"),
        ({"positions": "rotray"}, "did you mean 'rotary'"),
        ({"positions": "learned"}, "learned positions need max_positions"),
        ({"num_experts": 4, "experts_per_token": 5}, "must lie between 1 and num_experts = 4"),
        ({"q_lora_rank": -1}, "q_lora_rank = -1 is negative"),
    ],
)
def test_impossible_shapes_are_refused(fields, message):
    base = {"name": "m", "num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 100}
    with pytest.raises(ValueError, match=message):
        ModelSpec(**(base | fields))
