import copy

import pytest
import torch
from torch import nn

from workshop.models.gpt import GPT, GPTConfig
from workshop.precision.formats import round_to
from workshop.precision.fp8 import BF16, Fp8Linear, Recipe, product, runs_scaled_mm
from workshop.precision.fp8_swap import padded_size, swap, unswap, why_kept
from workshop.precision.scaling import AmaxHistory, amax_by, quantize, scale_of

SCALINGS = ("delayed", "tensor", "row", "block", "mx")


@pytest.fixture
def matrices():
    """(48, 160) and (32, 160), with outliers in rows and in columns."""
    torch.manual_seed(0)
    a, b = torch.randn(48, 160), torch.randn(32, 160) * 0.02
    a[3] *= 300
    a[:, 7] *= 50
    return a, b


def relative(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


# -- scales ----------------------------------------------------------------------------------------------------


def test_amax_of_each_group(matrices):
    a, _ = matrices
    assert amax_by(a, "tensor").shape == (1, 1)
    assert torch.equal(amax_by(a, "row"), a.abs().amax(1, keepdim=True))
    by_mx = amax_by(a, "mx")
    for row, first in ((0, 0), (3, 32), (47, 128)):
        assert torch.equal(by_mx[row, first : first + 32], a[row, first : first + 32].abs().max().expand(32))
    by_block, squares = amax_by(a, "block"), amax_by(a, "block", weight=True)
    assert by_block[5, 130] == a[5, 128:].abs().max()  # the last block is what is left
    assert by_block[5, 0] == a[5, :128].abs().max()
    assert squares[5, 0] == a[:, :128].abs().max()
    assert squares.shape == by_block.shape == a.shape


@pytest.mark.parametrize("granularity", ["tensor", "row", "block", "mx"])
def test_the_largest_of_a_group_uses_the_format(matrices, granularity):
    operand = quantize(matrices[0], "e4m3", granularity)
    top = operand.values.float().abs().max()
    assert operand.values.dtype == torch.float8_e4m3fn
    assert 448 / (2 if granularity == "mx" else 1) <= top <= 448
    assert relative(operand.decode(), matrices[0]) < 0.04


def test_finer_scales_lose_less(matrices):
    errors = [
        relative(quantize(matrices[0], "e4m3", how).decode()[10:], matrices[0][10:])
        for how in ("tensor", "row")
    ]
    assert errors[1] < errors[0]
    zeros = [
        (quantize(matrices[0] * 1e-3, "e4m3", how).values.float() == 0).float().mean()
        for how in ("tensor", "row")
    ]
    assert zeros[1] < zeros[0]


def test_scale_of_nothing_and_by_powers():
    assert scale_of(torch.tensor([0.0, 448.0, 1.0]), "e4m3").tolist() == [1, 1, pytest.approx(1 / 448)]
    assert scale_of(torch.tensor([448.0, 449.0, 100.0]), "e4m3", power_of_two=True).tolist() == [1, 2, 0.25]


def test_history_looks_back_only():
    history = AmaxHistory("e4m3", length=3)
    seen = []
    for amax in (4.48, 44.8, 4.48, 4.48, 4.48, 4.48):
        operand = history.quantize(torch.tensor([[amax, 0.0]]))
        seen.append((round(float(operand.scale), 6), round(float(operand.decode().max()), 4)))
    # the second step grows tenfold and is cut; the scale follows one step late, and forgets after three
    assert seen == [(0.01, 4.48), (0.01, 4.48), (0.1, 4.4), (0.1, 4.4), (0.1, 4.4), (0.01, 4.48)]


def test_history_has_a_margin_and_forgets_infinity():
    history = AmaxHistory("e4m3", margin=1)
    assert float(history.quantize(torch.tensor([[448.0]])).scale) == 2
    history.record(torch.tensor([float("inf")]))
    assert max(history.history) == 448
    with pytest.raises(ValueError, match="remembers nothing"):
        AmaxHistory("e4m3", length=0)


# -- products --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("granularity", ["tensor", "row"])
@pytest.mark.parametrize("forms", [("e4m3", "e4m3"), ("e5m2", "e4m3")])
def test_scaled_mm_is_the_emulation(matrices, granularity, forms):
    if not runs_scaled_mm("cpu", granularity == "row"):
        pytest.skip("this torch has no 8-bit product for the CPU")
    operands = [quantize(each, form, granularity) for each, form in zip(matrices, forms, strict=True)]
    emulated = product(*operands, "emulated")
    by_units = product(*operands, "scaled_mm")
    assert relative(by_units, emulated) < (1e-6 if granularity == "tensor" else 3e-3)  # by row it is bf16
    assert relative(emulated, matrices[0] @ matrices[1].t()) < 0.08


def test_formats_that_a_device_does_not_multiply_by_rows_are_emulated(matrices, monkeypatch):
    """As on a Hopper, whose units scale by rows in E4M3 alone: they are asked about these two formats."""

    def scaled_mm(a, b, *scales, out_dtype):
        if scales[0].numel() > 1 and torch.float8_e5m2 in (a.dtype, b.dtype):
            raise RuntimeError("by rows in e4m3 alone")
        return torch.zeros(a.shape[0], b.shape[1], dtype=out_dtype, device=a.device)

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    runs_scaled_mm.cache_clear()
    try:
        for forms, units in ((("e4m3", "e4m3"), True), (("e5m2", "e4m3"), False)):
            left, right = (
                quantize(each.to("meta"), form, "row") for each, form in zip(matrices, forms, strict=True)
            )
            assert runs_scaled_mm("meta", True, left.values.dtype, right.values.dtype) == units
            assert product(left, right).shape == (48, 32)  # by the units, or emulated; none is refused
            assert runs_scaled_mm("meta", False, left.values.dtype, right.values.dtype)
    finally:
        runs_scaled_mm.cache_clear()


@pytest.mark.parametrize("granularity", ["tensor", "row", "block", "mx"])
def test_a_product_is_that_of_the_rounded_matrices(matrices, granularity):
    a, b = (quantize(each, "e4m3", granularity) for each in matrices)
    wanted = a.decode().double() @ b.decode().double().t()
    assert relative(product(a, b).double(), wanted) < 1e-6


def test_what_units_cannot_read_is_said(matrices):
    a, b = (quantize(each[:5], "e4m3", "tensor") for each in matrices)
    with pytest.raises(ValueError, match="multiples of 16"):
        product(a, b, "scaled_mm")
    with pytest.raises(ValueError, match="by tensor or by row"):
        Recipe("mx", through="scaled_mm")
    with pytest.raises(ValueError, match="delayed"):
        Recipe("delay")


# -- the layer -------------------------------------------------------------------------------------------------


def layer_and_gradients(recipe, x, linear):
    layer = copy.deepcopy(linear)
    if recipe is not None:
        layer.__class__ = Fp8Linear
        layer.recipe, layer.histories = recipe, {}
    x = x.clone().requires_grad_()
    y = layer(x)
    y.square().sum().backward()
    return y.detach(), x.grad, layer.weight.grad, layer.bias.grad


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("wgrad", ["e5m2", ""])
def test_three_products_are_near_those_of_fp32(scaling, wgrad):
    torch.manual_seed(0)
    linear, x = nn.Linear(64, 48), torch.randn(2, 32, 64)
    wanted = layer_and_gradients(None, x, linear)
    found = layer_and_gradients(Recipe(scaling, wgrad=wgrad), x, linear)
    for name, mine, reference in zip(("y", "dx", "dw", "db"), found, wanted, strict=True):
        assert mine.shape == reference.shape
        assert 0 < relative(mine, reference) < 0.09, name


def test_the_formats_are_those_that_are_asked_for():
    """With a scale of one, done by hand: E4M3 forward, E5M2 for dy in both gradients."""
    torch.manual_seed(0)
    linear, x = nn.Linear(16, 32), torch.randn(16, 16)
    y, dx, dw, _ = layer_and_gradients(Recipe("none"), x, linear)
    x8, w8 = round_to(x, "e4m3"), round_to(linear.weight, "e4m3")
    dy = round_to(2 * y, "e5m2")
    assert torch.allclose(y, x8 @ w8.t() + linear.bias, atol=1e-6)
    assert torch.allclose(dx, dy @ w8, atol=1e-5)
    assert torch.allclose(dw, dy.t() @ x8, atol=1e-5)


def test_what_waits_for_backward_is_eight_bits_wide():
    saved = []
    layer = nn.Linear(64, 64)
    layer.__class__, layer.recipe, layer.histories = Fp8Linear, Recipe("tensor"), {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        layer(torch.randn(32, 64))
    assert sum(t.numel() * t.element_size() for t in saved) == 32 * 64 + 64 * 64 + 2 * 4


def test_equal_to_torchaos_emulation():
    float8 = pytest.importorskip("torchao.float8")
    torch.manual_seed(0)
    linear, x = nn.Linear(64, 48, bias=False), torch.randn(32, 64)
    config = float8.Float8LinearConfig(emulate=True)
    theirs = float8.convert_to_float8_training(nn.Sequential(copy.deepcopy(linear)), config=config)
    assert type(theirs[0]).__name__ == "Float8Linear"
    ours = nn.Sequential(linear)
    swap(ours, Recipe("tensor"), keep_ends=False)
    made = []
    for model in (ours, theirs):
        inputs = x.clone().requires_grad_()
        y = model(inputs)
        y.square().sum().backward()
        made.append((y.detach(), inputs.grad, next(model.parameters()).grad))
    for mine, other in zip(*made, strict=True):
        assert (
            relative(mine, other) < 2e-3
        )  # they multiply by 448 / amax where we divide: a middle may differ


# -- swapping --------------------------------------------------------------------------------------------------


@pytest.fixture
def gpt():
    torch.manual_seed(0)
    return GPT(
        GPTConfig(
            vocab_size=96, hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=64
        )
    )


def test_a_swap_leaves_the_state_dict_alone(gpt):
    before = {name: (value, value.clone()) for name, value in gpt.state_dict(keep_vars=True).items()}
    optimizer = torch.optim.AdamW(gpt.parameters())
    names = swap(gpt, Recipe())
    assert len(names) == 13  # of 15: not the first, nor the head
    after = gpt.state_dict(keep_vars=True)
    assert list(after) == list(before)
    for name, (value, copied) in before.items():
        assert after[name] is value
        assert torch.equal(after[name], copied)
    tokens = torch.randint(96, (2, 16))
    gpt(tokens, tokens).backward()
    optimizer.step()  # still holds the model's own parameters
    assert list(gpt.state_dict()) == list(before)  # histories are no state
    assert not torch.equal(
        gpt.model.layers[1].mlp.up_proj.weight, before["model.layers.1.mlp.up_proj.weight"][1]
    )
    plain = GPT(gpt.config)
    plain.load_state_dict(gpt.state_dict())
    unswap(gpt)
    assert torch.equal(gpt(tokens), plain(tokens))
    assert {type(m) for m in gpt.modules()} == {type(m) for m in plain.modules()}


def test_ends_shared_weights_and_odd_sizes_are_kept(gpt):
    reasons = why_kept(gpt)
    assert reasons["model.layers.0.self_attn.q_proj"] == "the first"
    assert reasons["lm_head"] == "the last"
    tied = GPT(GPTConfig(vocab_size=90, hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, tied=True))
    assert why_kept(tied, keep_ends=False)["lm_head"] == "its weight is shared"
    odd = GPT(GPTConfig(vocab_size=90, hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1))
    assert why_kept(odd, keep_ends=False)["lm_head"] == "32 x 90: no multiples of 16"
    assert "lm_head" not in swap(odd, Recipe(), keep_ends=False)
    with pytest.raises(ValueError, match="no linear layers"):
        why_kept(odd, keep=["head"])
    with pytest.raises(ValueError, match="no layer can run in FP8"):
        swap(nn.Sequential(nn.Linear(3, 3)), Recipe())


def test_padded_size():
    assert [padded_size(size) for size in (1, 16, 17, 50257, 32000)] == [16, 16, 32, 50272, 32000]
    with pytest.raises(ValueError, match="1 or more"):
        padded_size(0)


@pytest.mark.parametrize("recipe", [Recipe(), Recipe("tensor"), Recipe("mx", backward="e4m3", wgrad="e4m3")])
def test_training_in_fp8_follows_bf16(gpt, recipe):
    tokens = torch.randint(96, (4, 17), generator=torch.Generator().manual_seed(1))
    ends = []
    for each in (BF16, recipe):
        model = copy.deepcopy(gpt)
        swap(model, each)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(30):
            loss = model(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        ends.append(loss.item())
    assert ends[1] == pytest.approx(ends[0], rel=0.05)
    assert ends[1] < 3
