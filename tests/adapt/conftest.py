import os

import pytest

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed, which peft imports, would wonder aloud


@pytest.fixture(scope="session")
def tiny():
    """A function that builds a small tied Llama from a seed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def build(seed=0):
        torch.manual_seed(seed)
        shape = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 256}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        return LlamaForCausalLM(LlamaConfig(**shape, **heads, tie_word_embeddings=True, use_cache=False))

    return build


@pytest.fixture(scope="session")
def tokens():
    import torch

    return torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(1))
