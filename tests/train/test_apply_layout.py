"""What a layout makes of a model: its precision, what it keeps for backward, and what is refused."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from workshop.facts.layout import Layout
from workshop.models.gpt import GPT, GPTConfig
from workshop.models.text import TextBatches
from workshop.train.apply_layout import apply_layout
from workshop.train.loop import train_loop
from workshop.train.recompute import apply_recompute
from workshop.train.settings import Settings

TINY = GPTConfig(
    vocab_size=256, hidden_size=32, num_layers=3, num_heads=2, num_kv_heads=1, intermediate_size=64
)


def test_another_number_of_ranks_and_a_missing_group_are_refused():
    with pytest.raises(ValueError, match=r"for 4 ranks and there are 1: Layout\(shard=1, ...\)"):
        apply_layout(GPT(TINY), Layout(shard=4, zero=3))
    with pytest.raises(ValueError, match="fsdp needs a process group, also for one rank"):
        apply_layout(GPT(TINY), Layout())


def test_fp16_scales_its_loss_and_still_learns():
    torch.manual_seed(0)
    settings = Settings(num_steps=3, learning_rate=3e-3)
    ready = apply_layout(GPT(TINY), Layout(precision="amp-fp16"), settings)
    losses = train_loop(ready, TextBatches(16, 2), settings).values
    assert losses[-1] < losses[0]
    assert ready._scaler.get_scale() > 1
    assert 0 < float(ready.gradient_norm) < 100  # unscaled before it was measured


def saved_bytes(recompute, **more):
    """Bytes autograd keeps for backward, and the gradients."""
    torch.manual_seed(0)
    model = GPT(TINY)
    apply_recompute(model, Layout(recompute=recompute, **more))
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tokens = next(TextBatches(64, 4).step(0))[0]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(tokens, tokens)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    total = sum(size for pointer, size in kept.items() if pointer not in weights)
    loss.backward()
    return total, [p.grad for p in model.parameters()]


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.count += op is torch.ops.aten.mm.default
        return op(*args, **(kwargs or {}))


def test_recompute_keeps_less_and_changes_no_gradient():
    with Products() as products:
        plain, gradients = saved_bytes("none")
    at_first = products.count
    policies = {
        "core": ({"recompute": "selective"}, 0),
        "mlp": (
            {"recompute": "selective", "recompute_modules": ("mlp",)},
            3 * 3,
        ),  # three products, three layers
        "ops": ({"recompute": "selective", "recompute_modules": ("ops",)}, 3 * 3),  # every second of seven
        "full": ({"recompute": "full"}, 3 * 7),
    }
    kept = {}
    for name, (policy, again) in policies.items():
        with Products() as products:
            kept[name], others = saved_bytes(**policy)
        # The last product of what is run again is not needed: torch stops before it.
        assert at_first + again - 3 <= products.count <= at_first + again, name
        for mine, theirs in zip(gradients, others, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
    assert kept["full"] < kept["mlp"] < plain
    assert kept["full"] < saved_bytes("full", recompute_layers=1)[0] < plain


def test_recompute_refuses_what_it_cannot_find():
    with pytest.raises(ValueError, match=r"unknown module to recompute 'mpl'; did you mean 'mlp'\?"):
        apply_recompute(GPT(TINY), Layout(recompute="selective", recompute_modules=("mpl",)))
    with pytest.raises(ValueError, match="recompute_every = 2"):
        apply_recompute(GPT(TINY), Layout(recompute="full", recompute_every=2))
    other = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"a Linear has no 'self_attn\.core'.*recompute='full'"):
        apply_recompute(other, Layout(recompute="selective"))


def test_settings_are_checked_when_they_are_made():
    with pytest.raises(ValueError, match="unknown engine 'fspd'; did you mean 'fsdp'"):
        Settings(engine="fspd")
    with pytest.raises(ValueError, match="learning_rate must be zero or more, not -1"):
        Settings(learning_rate=-1)
    with pytest.raises(ValueError, match="num_steps must be a whole number of at least 1, not 0"):
        Settings(num_steps=0)
