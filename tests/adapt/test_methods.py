"""What peft knows, behind one call: trained, saved, read again, merged; and what would be lost in silence."""

import pytest
import torch

from workshop.adapt.methods import (
    METHODS,
    adapt,
    adapter_state,
    after_step,
    clean_name,
    save_adapter,
    trained,
)
from workshop.adapt.qlora import check_gradients
from workshop.process.quiet import quietly

# Trained numbers of the tiny Llama: 2 layers of width 64, keys and values 32 wide, MLP 192.
EXPECTED = {
    "lora": 2 * (4 * (64 + 64) + 4 * (64 + 32)),
    "dora": 2 * (4 * (64 + 64) + 4 * (64 + 32) + 64 + 32),
    "adalora": 2 * (6 * (64 + 64) + 6 * (64 + 32) + 2 * 6),
    "ia3": 2 * (32 + 32 + 192),
    "prompt": 8 * 64,
}


@pytest.mark.parametrize("method", METHODS)
def test_trained_saved_read_again_merged(tiny, tokens, method, tmp_path):
    model = adapt(tiny(), method, rank=4, num_steps=10)
    count = sum(parameter.numel() for parameter in trained(model).values())
    assert count == EXPECTED.get(method, count)
    optimizer = torch.optim.AdamW(trained(model).values(), lr=1e-2)
    losses = []
    for step in range(6):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        check_gradients(model)
        optimizer.step()
        after_step(model, step)
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    if method == "full":
        return
    from peft import PeftModel

    file = save_adapter(model, tmp_path)
    assert file.stat().st_size > 100
    logits = model.eval()(input_ids=tokens).logits
    with quietly():
        again = PeftModel.from_pretrained(tiny(), tmp_path).eval()
    assert (again(input_ids=tokens).logits - logits).abs().max() < 1e-5
    if method in ("lora", "dora", "adalora", "ia3"):  # prompts change no weight
        assert (model.merge_and_unload()(input_ids=tokens).logits - logits).abs().max() < 1e-4


def test_nothing_to_save_is_refused(tiny, tmp_path):
    model = adapt(tiny(), "lora")
    state = adapter_state(model)
    with pytest.raises(ValueError, match=r"has 3,584 trained numbers and 0 would be saved"):
        save_adapter(
            model, tmp_path, {f"odd.{name}".replace("lora_", "lara_"): t for name, t in state.items()}
        )
    some = dict(list(state.items())[:3])
    assert save_adapter(model, tmp_path, some).exists()  # the caller's own choice
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="trains nothing, so its adapter would be saved empty"):
        save_adapter(model, tmp_path)


def test_broken_numbers_are_not_saved(tiny):
    model = adapt(tiny(), "lora")
    next(iter(trained(model).values())).data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="holds values that are not numbers"):
        adapter_state(model)


@pytest.mark.parametrize(
    "name",
    [
        "module.a.q.lora_a",
        "_orig_mod.a.q.lora_a",
        "a._checkpoint_wrapped_module.q.lora_a",
        "_fsdp_wrapped_module.a._fsdp_wrapped_module.q.lora_a",
    ],
)
def test_names_without_wrappers(name):
    assert clean_name(name) == "a.q.lora_a"


def test_mistakes(tiny):
    with pytest.raises(ValueError, match="lorra"):
        adapt(tiny(), "lorra")
    with pytest.raises(ValueError, match=r"no linear map is called query; there are .*q_proj"):
        adapt(tiny(), "lora", targets=["query"])
