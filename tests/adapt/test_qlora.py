"""QLoRA on one process: by hand as bitsandbytes, its bytes, its memory, and its silent failures caught."""

import pytest
import torch
from torch import nn

from workshop.adapt import methods, qlora
from workshop.adapt.lora import DoRALinear, add_lora, dense_weight, merge_lora
from workshop.facts.nf4 import nf4_bits


def both_ways(tiny, double):
    """Quantized by hand and by bitsandbytes, with the same LoRA, which does something."""
    models = [add_lora(qlora.quantize_base(tiny(), way, double), rank=4) for way in ("hand", "bitsandbytes")]
    for a, b in zip(*(methods.trained(model).values() for model in models), strict=True):
        nn.init.normal_(a, std=0.1)
        b.data.copy_(a.data)
    return models


@pytest.mark.parametrize(("double", "near"), [(False, 1e-6), (True, 1e-3)])
def test_logits_and_gradients_are_the_librarys(tiny, tokens, double, near):
    ours, theirs = both_ways(tiny, double)
    mine, its = (model(input_ids=tokens, labels=tokens) for model in (ours, theirs))
    assert (mine.logits - its.logits).abs().max() < near
    mine.loss.backward()
    its.loss.backward()
    for a, b in zip(*(methods.trained(model).values() for model in (ours, theirs)), strict=True):
        assert (a.grad - b.grad).abs().max() < near
    assert qlora.packed_bytes(ours) == qlora.packed_bytes(theirs)


@pytest.mark.parametrize("way", qlora.WAYS)
def test_training_after_an_evaluation(tiny, tokens, way):
    """On CPUs with AVX512-BF16 the unguarded library trains nothing after the first evaluation."""
    model = add_lora(qlora.quantize_base(tiny(), way), rank=4)
    with torch.no_grad():
        model.eval()(input_ids=tokens)
    model.train()(input_ids=tokens, labels=tokens).loss.backward()
    qlora.check_gradients(model)
    assert any(p.grad.abs().max() > 0 for p in methods.trained(model).values())


def test_the_guard_is_set_and_too_late_is_told(tiny):
    model = qlora.quantize_base(tiny())
    maps = [module for module in model.modules() if hasattr(module, "support_avx512bf16_for_cpu")]
    assert len(maps) == 14
    assert not any(module.support_avx512bf16_for_cpu for module in maps)
    maps[3].support_avx512bf16_for_cpu = True
    maps[3].weight.quant_state.packing_format_for_cpu = True  # as an evaluation on such a CPU leaves it
    with pytest.raises(ValueError, match=r"o_proj was evaluated before it was guarded.*Load the model again"):
        qlora.guard(model)


def test_missing_gradients_are_told(tiny, tokens):
    model = add_lora(tiny(), rank=4)
    with pytest.raises(ValueError, match=r"8 of 8 trained parameters have no gradient.*q_proj.lora_a"):
        qlora.check_gradients(model)
    with pytest.raises(ValueError, match="nothing is trained"):
        qlora.check_gradients(tiny().requires_grad_(False))


@pytest.mark.parametrize("way", qlora.WAYS)
def test_merging_unpacks(tiny, tokens, way):
    model = add_lora(qlora.quantize_base(tiny(), way), rank=4)
    for parameter in methods.trained(model).values():
        nn.init.normal_(parameter, std=0.1)
    before = model(input_ids=tokens).logits
    merged = merge_lora(model)
    assert type(merged.model.layers[0].self_attn.q_proj) is nn.Linear
    assert (merged(input_ids=tokens).logits - before).abs().max() < 1e-4


@pytest.mark.parametrize("way", qlora.WAYS)
@pytest.mark.parametrize("double", [False, True])
def test_bytes_and_error(way, double):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(1024, 512, bias=False))
    weight = plain[0].weight.detach().clone()
    qlora.quantize_base(plain, way, double)
    assert abs(8 * qlora.packed_bytes(plain) / weight.numel() - nf4_bits(double)) < 1e-2
    error = (dense_weight(plain[0]) - weight).norm() / weight.norm()
    assert 0.05 < error < 0.15


def test_bias_and_kept_maps():
    model = nn.ModuleDict({"a": nn.Linear(64, 64), "lm_head": nn.Linear(64, 8)})
    x = torch.randn(2, 64)
    bias = model["a"].bias.detach().clone()
    qlora.quantize_base(model, "hand")
    assert type(model["lm_head"]) is nn.Linear
    torch.testing.assert_close(model["a"](x), x @ dense_weight(model["a"]).T + bias)
    with pytest.raises(ValueError, match="no plain nn.Linear to quantize"):
        qlora.quantize_base(model, "hand")
    with pytest.raises(ValueError, match="way"):
        qlora.quantize_base(nn.Linear(2, 2), "magic")


def test_dora_needs_a_plain_base():
    quantized = qlora.quantize_base(nn.Sequential(nn.Linear(64, 64)))
    with pytest.raises(ValueError, match="DoRA reads the rows of W: Linear4bit"):
        DoRALinear(quantized[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_paged_optimizer_needs_a_gpu():
    with pytest.raises(ValueError, match=r"no such GPU here: take torch.optim.AdamW"):
        qlora.paged_adamw([nn.Parameter(torch.zeros(1))], lr=1e-3)
