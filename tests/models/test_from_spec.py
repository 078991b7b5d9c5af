"""A spec becomes the model it describes, or is refused by name."""

import pytest
import torch

from workshop.facts import catalogue
from workshop.models.from_spec import gpt_config, gpt_of


@pytest.mark.parametrize(
    "name", ["gpt-1m", "gpt-30m", "llama-3.2-1b", "llama-3.1-8b", "llama-2-70b", "mixtral-8x7b"]
)
def test_the_model_has_the_parameters_of_its_spec(name):
    spec = catalogue.model(name)
    with torch.device("meta"):
        model = gpt_of(spec)
    assert sum(parameter.numel() for parameter in model.parameters()) == spec.num_params


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt2", "positions is 'learned'"),
        ("llama-4-scout", "shared_ffn_hidden_size is"),
        ("qwen3-8b", "qk_norm is 'head'"),
        ("mistral-7b", "attention_window is 4096"),
    ],
)
def test_what_is_no_llama_is_refused(name, words):
    with pytest.raises(ValueError, match=words):
        gpt_config(catalogue.model(name))
