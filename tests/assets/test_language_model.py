"""SmolLM2: it answers, it is cut as promised, it loads fast. Fetched and converted on first use."""

import json
import time

import pytest
import torch

from workshop.assets import Unavailable, language_model
from workshop.facts import catalogue


@pytest.fixture(scope="module")
def whole():
    return language_model.load("smollm2", dtype=torch.float32)


@pytest.mark.timeout(600)
def test_it_is_the_model_of_the_catalogue(whole):
    model, tokenizer = whole
    assert (
        sum(p.numel() for p in model.parameters())
        == catalogue.model("smollm2-135m").num_params
        == 134_515_008
    )
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert len(tokenizer) == 49_152
    assert not model.training


def test_it_knows_something(whole):
    model, tokenizer = whole
    tokens = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        best = model(tokens).logits[0, -1].argmax()
    assert tokenizer.decode(best).strip() == "Paris"


def test_layers_spread_over_depth(whole):
    model, _tokenizer = language_model.load("smollm2", num_layers=4, dtype=torch.float32)
    assert model.config.num_hidden_layers == 4
    assert model.lm_head.weight is model.model.embed_tokens.weight
    for new, old in enumerate((0, 10, 19, 29)):
        kept, of_whole = model.model.layers[new].state_dict(), whole[0].model.layers[old].state_dict()
        assert all(torch.equal(kept[key], of_whole[key]) for key in of_whole)
    tokens = torch.arange(6)[None]
    with torch.no_grad():
        logits = model(tokens).logits
        keys = model(tokens, use_cache=True).past_key_values
    assert logits.shape == (1, 6, 49_152)
    assert len(keys) == 4


def test_it_loads_fast(whole):
    quickest = float("inf")
    for _ in range(3):
        started = time.process_time()  # what others do on this machine is not counted
        model, _ = language_model.load()
        quickest = min(quickest, time.process_time() - started)
    assert model.dtype == torch.bfloat16
    assert quickest < 3  # 0.5 s here


@pytest.mark.parametrize("wrong", [0, 31])
def test_layers_that_are_not_there(wrong):
    with pytest.raises(ValueError, match=f"num_layers = {wrong}: the model has 30; keep between 1 and 30"):
        language_model.load(num_layers=wrong)


def test_spread():
    assert language_model.spread(30, 30) == list(range(30))
    assert language_model.spread(1, 30) == [0]
    for count in range(2, 31):
        kept = language_model.spread(count, 30)
        assert (kept[0], kept[-1], len(set(kept))) == (0, 29, count)


def test_an_unknown_model():
    with pytest.raises(ValueError, match=r"unknown language model 'smol'.*WORKSHOP_HUB=1"):
        language_model.load("smol")


def test_the_hub_is_asked_only_where_the_user_says_so(monkeypatch):
    monkeypatch.delenv("WORKSHOP_HUB", raising=False)
    with pytest.raises(Unavailable, match="set WORKSHOP_HUB=1"):
        language_model.load("some/model")


def test_a_hub_that_does_not_answer(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKSHOP_HUB", "1")
    monkeypatch.setenv("WORKSHOP_OFFLINE", "1")
    with pytest.raises(
        Unavailable, match=r"the hub did not give 'some/model'.*language_model.load\('smollm2'\)"
    ):
        language_model.load("some/model")


def test_a_model_from_the_hubs_cache(whole, monkeypatch, tmp_path):
    """The hub's own folders, as snapshot_download leaves them, with a tiny model in them."""
    from huggingface_hub import constants
    from transformers import LlamaConfig, LlamaForCausalLM

    monkeypatch.setenv("WORKSHOP_HUB", "1")
    monkeypatch.setenv("WORKSHOP_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository, commit = tmp_path / "models--some--model", "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 49_152}
    small = LlamaForCausalLM(LlamaConfig(num_hidden_layers=3, num_key_value_heads=1, **shape))
    small.save_pretrained(repository / "snapshots" / commit)
    whole[1].save_pretrained(repository / "snapshots" / commit)
    words = repository / "snapshots" / commit / "tokenizer_config.json"
    without_padding = {
        key: value for key, value in json.loads(words.read_text()).items() if key != "pad_token"
    }
    words.write_text(json.dumps(without_padding))  # as older versions of transformers read the packed model
    model, tokenizer = language_model.load("some/model", num_layers=2, dtype=torch.float32)
    assert torch.equal(model.model.layers[1].mlp.up_proj.weight, small.model.layers[2].mlp.up_proj.weight)
    assert tokenizer(["a", "a longer one"], padding=True).input_ids[0][-1] == tokenizer.eos_token_id


def test_a_converter_that_fails_says_its_last_word(monkeypatch, tmp_path):
    with pytest.raises(Unavailable, match="smollm2 could not be converted: .*"):
        language_model._run_converter(tmp_path / "nothing", tmp_path)


def test_without_gguf(monkeypatch, tmp_path):
    monkeypatch.setattr(language_model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="pip install gguf"):
        language_model._run_converter(tmp_path, tmp_path)
