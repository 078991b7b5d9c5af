"""Parameters equal those of modules that transformers and timm build on the meta device."""

import pytest

from workshop.facts import catalogue

torch = pytest.importorskip("torch")


def built(kind, **fields):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(**fields)
    with torch.device("meta"):
        model = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config)
    return sum(parameter.numel() for parameter in model.parameters())


def llama_like(spec):
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.ffn_hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "tie_word_embeddings": spec.tied_embeddings,
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama-3.1-8b", "Llama"),
        ("llama-3.2-1b", "Llama"),
        ("llama-2-70b", "Llama"),
        ("smollm2-135m", "Llama"),
        ("mistral-7b", "Mistral"),
        ("qwen2.5-7b", "Qwen2"),
        ("qwen3-8b", "Qwen3"),
        ("olmo-2-7b", "Olmo2"),
    ],
)
def test_dense_models(name, kind):
    spec = catalogue.model(name)
    assert built(kind, **llama_like(spec)) == spec.num_params


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-xl"])
def test_gpt2(name):
    spec = catalogue.model(name)
    assert (
        built("GPT2", n_embd=spec.hidden_size, n_layer=spec.num_layers, n_head=spec.num_heads)
        == spec.num_params
    )


def test_mixtral():
    spec = catalogue.model("mixtral-8x7b")
    assert built("Mixtral", **llama_like(spec), num_local_experts=8, num_experts_per_tok=2) == spec.num_params


def test_qwen3_mixture():
    spec = catalogue.model("qwen3-30b-a3b")
    fields = llama_like(spec) | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    assert built("Qwen3Moe", **fields) == spec.num_params


def test_latent_attention_and_shared_experts():
    spec = catalogue.model("deepseek-v3")
    fields = {
        **llama_like(spec),
        "moe_intermediate_size": spec.moe_ffn_hidden_size,
        "n_routed_experts": spec.num_experts,
        "num_experts_per_tok": spec.experts_per_token,
        "n_shared_experts": 1,
        "first_k_dense_replace": spec.first_dense_layers,
        "q_lora_rank": spec.q_lora_rank,
        "kv_lora_rank": spec.kv_lora_rank,
        "qk_nope_head_dim": spec.qk_nope_head_dim,
        "qk_rope_head_dim": spec.qk_rope_head_dim,
        "v_head_dim": spec.v_head_dim,
    }
    fields["head_dim"] = spec.qk_rope_head_dim
    # transformers keeps the router's bias as a buffer, the published checkpoint counts it.
    biases = spec.num_experts * spec.layer_kinds().count("moe")
    assert built("DeepseekV3", **fields) in (spec.num_params, spec.num_params - biases)


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("vit-b-16", 86_567_656),  # vit_base_patch16_224
        ("vit-l-16", 304_326_632),
        ("coatnet-0", 25_036_820),  # coatnet_0_224
        ("coatnet-1", 42_225_776),
        ("coatnet-2", 74_684_744),
        ("coatnet-3", 166_966_264),
    ],
)
def test_vision_models(name, counted):
    """Counted on timm 1.0.31's modules; timm itself brings a torchvision that the CPU build of torch cannot load."""
    assert catalogue.vision_model(name).num_params == counted
