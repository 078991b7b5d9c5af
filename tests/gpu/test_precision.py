"""Formats, scales and products of FP8 on a GPU, equal to the CPU's, which other tests hold to a table."""

import pytest
import torch
from torch import nn

from workshop.precision.blocks import encode_blocks
from workshop.precision.formats import decode, encode, round_to
from workshop.precision.fp8 import Fp8Linear, Recipe, product, runs_scaled_mm
from workshop.precision.fp8_libraries import LIBRARIES, prepare_fp8, why_not
from workshop.precision.fp8_swap import swap
from workshop.precision.scaling import quantize

needs_units = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
    reason="needs 8-bit units (8.9 or later)",
)


@pytest.mark.parametrize("form", ["e4m3", "e5m2", "bf16", "fp16"])
def test_rounding_is_the_cpus_to_the_bit(form):
    x = torch.randn(4096) * torch.logspace(-8, 4, 4096)
    assert torch.equal(round_to(x.cuda(), form).cpu(), round_to(x, form))


@pytest.mark.parametrize("form", ["e4m3", "e5m2"])
def test_codes_are_the_cpus_and_torchs_own(form):
    x = torch.randn(4096).clamp(-400, 400)
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[form]
    codes = encode(x.cuda(), form)
    assert torch.equal(codes.cpu().to(torch.uint8), x.to(dtype).view(torch.uint8))
    assert torch.equal(decode(codes, form).cpu().float(), x.to(dtype).float())


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "nvfp4", "nf4"])
def test_blocks_are_the_cpus(name):
    x = torch.randn(64, 256)
    assert torch.equal(encode_blocks(x.cuda(), name).decode().cpu(), encode_blocks(x, name).decode())
    assert encode_blocks(x.cuda(), name) is not None


@needs_units
@pytest.mark.parametrize("by_row", [False, True])
def test_this_gpu_multiplies_fp8(by_row):
    assert runs_scaled_mm("cuda", by_row)


@needs_units
@pytest.mark.parametrize("granularity", ["tensor", "row"])
@pytest.mark.parametrize("forms", [("e4m3", "e4m3"), ("e5m2", "e4m3")])
def test_the_units_give_what_emulation_gives(granularity, forms):
    if granularity == "row" and forms[0] == "e5m2":
        pytest.skip("torch multiplies by rows in e4m3 alone")
    a, b = torch.randn(256, 512, device="cuda"), torch.randn(128, 512, device="cuda")
    left, right = quantize(a, forms[0], granularity), quantize(b, forms[1], granularity)
    by_units, emulated = product(left, right, "scaled_mm"), product(left, right, "emulated")
    error = (by_units - emulated).norm() / emulated.norm()
    assert error < (5e-3 if granularity == "row" else 1e-3)  # by row the result is bf16


@needs_units
@pytest.mark.parametrize("scaling", ["delayed", "tensor", "row", "block", "mx"])
def test_a_layers_three_products_are_near_fp32s(scaling):
    plain = nn.Linear(256, 128, bias=False, device="cuda")
    eight = Fp8Linear(256, 128, bias=False, device="cuda")
    eight.load_state_dict(plain.state_dict())
    eight.recipe, eight.histories = Recipe(scaling), {}
    x = torch.randn(64, 256, device="cuda")
    gradients = {}
    for name, layer in (("plain", plain), ("eight", eight)):
        inputs = x.clone().requires_grad_()
        layer(inputs).square().sum().backward()
        gradients[name] = (inputs.grad, layer.weight.grad)
    for a, b in zip(gradients["eight"], gradients["plain"], strict=True):
        assert (a - b).norm() / b.norm() < 0.15


@needs_units
def test_odd_sizes_are_emulated_and_refused_where_units_are_asked_for():
    a, b = (quantize(torch.randn(20, 24, device="cuda"), "e4m3", "tensor") for _ in "ab")
    assert product(a, b).shape == (20, 20)
    with pytest.raises(ValueError, match="multiples of 16"):
        product(a, b, "scaled_mm")


@needs_units
@pytest.mark.parametrize("through", LIBRARIES)
def test_a_library_trains(through):
    if reason := why_not(through):
        pytest.skip(reason)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(*[nn.Linear(128, 128) for _ in range(4)]).to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # a smaller step is lost in bf16's rounding
    model, optimizer, inside = prepare_fp8(model, optimizer, through)
    x, losses = torch.randn(64, 128, device="cuda", dtype=torch.bfloat16), []
    for _ in range(5):
        with inside():
            loss = (model(x) - x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    assert losses[-1] < losses[0]


def test_swapped_layers_keep_their_parameters():
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]).to("cuda")
    before = {name: p.data_ptr() for name, p in model.named_parameters()}
    assert swap(model, Recipe("tensor"))
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_the_scaler_skip_a_step_that_overflows(dtype):
    model = nn.Linear(32, 32, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16, enabled=dtype is torch.float16)
    before = model.weight.detach().clone()
    with torch.autocast("cuda", dtype):
        loss = model(torch.full((4, 32), 1e4, device="cuda")).sum() * 100
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    skipped = torch.equal(model.weight, before)
    assert skipped == (dtype is torch.float16)
    assert scaler.get_scale() == (2.0**15 if dtype is torch.float16 else 1.0)
