"""LoRA and DoRA by hand: peft's logits and gradients, merging, and what is said of mistakes."""

import copy

import pytest
import torch
from torch import nn

from workshop.adapt.lora import DoRALinear, LoRALinear, add_lora, merge_lora, num_trainable
from workshop.adapt.methods import adapt
from workshop.facts import catalogue
from workshop.facts.run import Adapter


def beside_pefts(tiny, dora):
    """The same model by hand and by peft, with the same adapter, which does something."""
    ours, theirs = (
        add_lora(tiny(), rank=4, alpha=8, dora=dora),
        adapt(tiny(), "dora" if dora else "lora", rank=4),
    )
    pairs = []
    for name, module in ours.named_modules():
        if isinstance(module, LoRALinear):
            other = theirs.get_submodule(f"base_model.model.{name}")
            nn.init.normal_(module.lora_b, std=0.1)
            other.lora_A["default"].weight.data.copy_(module.lora_a)
            other.lora_B["default"].weight.data.copy_(module.lora_b)
            pairs += [
                (module.lora_a, other.lora_A["default"].weight),
                (module.lora_b, other.lora_B["default"].weight),
            ]
            if dora:
                pairs.append((module.magnitude, other.lora_magnitude_vector["default"].weight))
    return ours, theirs, pairs


@pytest.mark.parametrize("dora", [False, True])
def test_logits_and_gradients_are_pefts(tiny, tokens, dora):
    ours, theirs, pairs = beside_pefts(tiny, dora)
    assert num_trainable(ours) == num_trainable(theirs) == sum(mine.numel() for mine, _ in pairs)
    mine, its = (model(input_ids=tokens, labels=tokens) for model in (ours, theirs))
    torch.testing.assert_close(mine.logits, its.logits, atol=1e-6, rtol=1e-5)
    plain = tiny()(input_ids=tokens).logits
    assert (mine.logits - plain).abs().max() > 1e-3  # the adapter does something
    mine.loss.backward()
    its.loss.backward()
    for a, b in pairs:
        assert a.grad.abs().max() > 0
        torch.testing.assert_close(a.grad, b.grad, atol=1e-7, rtol=1e-4)
    assert all(p.grad is None for p in ours.parameters() if not p.requires_grad)


@pytest.mark.parametrize("dora", [False, True])
def test_merged_does_the_same(tiny, tokens, dora):
    ours, _, _ = beside_pefts(tiny, dora)
    before = ours(input_ids=tokens).logits
    merged = merge_lora(ours)
    assert not any(isinstance(module, LoRALinear) for module in merged.modules())
    assert (merged(input_ids=tokens).logits - before).abs().max() < 1e-5


@pytest.mark.parametrize("dora", [False, True])
def test_it_begins_as_the_model_was(tiny, tokens, dora):
    plain = tiny()
    adapted = add_lora(copy.deepcopy(plain), dora=dora)
    assert (adapted(input_ids=tokens).logits - plain(input_ids=tokens).logits).abs().max() < 1e-6


@pytest.mark.parametrize("dora", [False, True])
def test_a_map_with_a_bias(dora):
    torch.manual_seed(0)
    linear = (DoRALinear if dora else LoRALinear)(nn.Linear(6, 5), rank=2)
    nn.init.normal_(linear.lora_b)
    x = torch.randn(3, 6)
    torch.testing.assert_close(linear(x), linear.merged()(x), atol=1e-6, rtol=1e-5)


def test_the_scale_is_alpha_over_rank():
    linear = LoRALinear(nn.Linear(6, 5, bias=False), rank=3, alpha=6)
    nn.init.ones_(linear.lora_b)
    torch.testing.assert_close(linear.change(), 2 * linear.lora_b @ linear.lora_a)


def test_counts_are_the_predictors():
    spec = catalogue.model("smollm2-135m")
    assert Adapter("lora", 8, ("q", "v")).params(spec) == 460_800


def test_mistakes_are_told(tiny):
    with pytest.raises(ValueError, match=r"no linear map is called query; there are .*q_proj"):
        add_lora(tiny(), targets=("query", "v_proj"))
    with pytest.raises(ValueError, match="rank"):
        LoRALinear(nn.Linear(2, 2), rank=0)
    with pytest.raises(ValueError, match="DoRA reads the rows of W: Embedding is not"):
        DoRALinear(nn.Embedding(3, 2))
