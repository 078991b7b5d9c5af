"""From a Llama of `transformers` to a `GPT` with the same weights: SmolLM2, to be served or cut by our
own code.

The names in both state dicts are the same, so nothing is copied.
"""

from __future__ import annotations

from typing import Any

import torch

from workshop.models.gpt import GPT, GPTConfig


def as_gpt(model: Any) -> GPT:
    """A `LlamaForCausalLM` as a `GPT` that shares its weights, in eval mode.

    ValueError for a model of another kind, or one whose rotary wavelengths are stretched.
    """
    from_hub = model.config
    rope = from_hub.rope_parameters
    if from_hub.model_type != "llama" or rope["rope_type"] != "default":
        raise ValueError(
            f"a GPT is a Llama with plain rotary positions, not {from_hub.model_type!r} "
            f"with {rope['rope_type']!r}"
        )
    config = GPTConfig(
        vocab_size=from_hub.vocab_size,
        hidden_size=from_hub.hidden_size,
        num_layers=from_hub.num_hidden_layers,
        num_heads=from_hub.num_attention_heads,
        num_kv_heads=from_hub.num_key_value_heads,
        intermediate_size=from_hub.intermediate_size,
        tied=from_hub.tie_word_embeddings,
        rope_theta=rope["rope_theta"],
        norm_eps=from_hub.rms_norm_eps,
    )
    with torch.device("meta"):
        made = GPT(config)
    made.load_state_dict(model.state_dict(), assign=True)
    if config.tied:
        made.lm_head.weight = made.model.embed_tokens.weight
    return made.eval()
