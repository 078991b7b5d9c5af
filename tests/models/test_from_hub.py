"""A Llama of transformers becomes our own model: the same logits, or a refusal."""

from __future__ import annotations

import pytest
import torch

from tests.installed import skip_without


def test_the_same_weights_give_the_same_logits() -> None:
    skip_without("transformers")
    from transformers import LlamaConfig, LlamaForCausalLM

    from workshop.models.from_hub import as_gpt

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    hub = LlamaForCausalLM(LlamaConfig(**sizes, **heads, rms_norm_eps=1e-5, rope_theta=5e3)).eval()
    tokens = torch.randint(50, (2, 12))
    ours = as_gpt(hub)
    assert torch.allclose(ours(tokens), hub(tokens).logits, atol=1e-5)
    assert ours.lm_head.weight is ours.model.embed_tokens.weight


def test_a_model_of_another_kind_is_refused() -> None:
    skip_without("transformers")
    from transformers import LlamaConfig, LlamaForCausalLM

    from workshop.models.from_hub import as_gpt

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 50}
    stretched = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    hub = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, rope_parameters=stretched))
    with pytest.raises(ValueError, match="linear"):
        as_gpt(hub)
