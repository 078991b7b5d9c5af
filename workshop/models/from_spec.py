"""From the facts of a model to the model: a `ModelSpec` that is a Llama or a Mixtral becomes a `GPT`.

The predictor, the plan and the lesson talk about `ModelSpec`; training needs modules. What `GPT` cannot be
(learned positions, biases, shared experts, odd heads) is refused by name, never built as something near it.
The shape is all that is taken over: weights are drawn anew, and rotary wavelengths are the plain ones.
"""

from __future__ import annotations

from typing import Any

from workshop.facts.model import ModelSpec
from workshop.models.gpt import GPT, GPTConfig
from workshop.models.moe import MoEConfig, with_experts

# What a GPT of workshop.models.gpt is, in the words of ModelSpec.
_LLAMA: dict[str, Any] = {
    "positions": "rotary",
    "norm": "rmsnorm",
    "norms_per_layer": 2,
    "final_norm": True,
    "embedding_norm": False,
    "qk_norm": "none",
    "gated_mlp": True,
    "qkv_bias": False,
    "attention_out_bias": False,
    "mlp_bias": False,
    "clamped_experts": False,
    "head_bias": False,
    "parallel_block": False,
    "causal": True,
    "attention_sinks": False,
    "attention_window": 0,
    "rotary_factor": 1.0,
    "kv_lora_rank": 0,
    "router_bias": False,
    "shared_ffn_hidden_size": 0,
    "first_dense_layers": 0,
    "moe_every": 1,
    "num_encoder_layers": 0,
    "num_token_types": 0,
    "num_mtp_layers": 0,
    "head_transform": False,
}


def gpt_config(spec: ModelSpec) -> GPTConfig:
    """The `GPTConfig` with the shape of ``spec``, but for its experts, if it has some.

    Raises:
        ValueError: the model is not Llama-shaped; the message lists every difference.
    """
    others = [
        f"{name} is {getattr(spec, name)!r}, a GPT has {value!r}"
        for name, value in _LLAMA.items()
        if getattr(spec, name) != value
    ]
    if spec.head_dim * spec.num_heads != spec.hidden_size:
        others.append(f"{spec.num_heads} heads of {spec.head_dim} are not hidden_size {spec.hidden_size}")
    if others:
        raise ValueError(
            f"{spec.name} cannot be built as workshop.models.gpt.GPT: {'; '.join(others)}. "
            "Build it with transformers, and hand the module to apply_layout"
        )
    return GPTConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        num_layers=spec.num_layers,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        intermediate_size=spec.ffn_hidden_size,
        tied=spec.tied_embeddings,
    )


def gpt_of(spec: ModelSpec) -> GPT:
    """A `GPT` with the shape of ``spec``, and so with ``spec.num_params`` parameters, experts included.

    Raises:
        ValueError: the model is shaped otherwise; the message lists every difference.
    """
    model = GPT(gpt_config(spec))
    if not spec.is_moe:
        return model
    width, inner = spec.hidden_size, spec.moe_ffn_hidden_size
    return with_experts(model, MoEConfig(width, inner, spec.num_experts, spec.experts_per_token))
