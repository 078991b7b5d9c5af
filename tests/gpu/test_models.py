"""Models, adapters and compressed weights give on a GPU what they give on a CPU."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workshop.models.gpt import GPT, TINY

CLOSE = {"rtol": 2e-4, "atol": 2e-4}


@pytest.fixture(autouse=True)
def _true_fp32():
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def pair(model):
    return model, copy.deepcopy(model).to("cuda")


def test_gpt_forward_and_backward():
    here, there = pair(GPT(TINY))
    words = torch.randint(0, 256, (2, 65))
    for model, device in ((here, "cpu"), (there, "cuda")):
        model(words[:, :-1].to(device), words[:, 1:].to(device)).backward()
    for a, b in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, **CLOSE)


@pytest.mark.parametrize("kind", ["vit", "coatnet"])
def test_vision_models(kind):
    from workshop.facts.catalogue import vision_model
    from workshop.models.coatnet import CoAtNet
    from workshop.models.vit import ViT

    names = {"vit": ("vit-ti-16", ViT), "coatnet": ("coatnet-0", CoAtNet)}
    name, make = names[kind]
    try:
        spec = vision_model(name)
    except ValueError as error:
        pytest.skip(str(error))
    here, there = pair(make(spec).eval())
    side = getattr(spec, "image_size", 224)
    images = torch.randn(1, getattr(spec, "channels", 3), side, side)
    with torch.no_grad():
        torch.testing.assert_close(there(images.cuda()).cpu(), here(images), rtol=5e-3, atol=5e-3)


def test_experts():
    from workshop.models.moe import MoE, MoEConfig

    here, there = pair(MoE(MoEConfig(32, 64, 4, 2)))
    x = torch.randn(2, 16, 32)
    torch.testing.assert_close(there(x.cuda()).cpu(), here(x), **CLOSE)


def test_a_compiled_layer_is_the_eager_one():
    model = GPT(TINY).to("cuda")
    words = torch.randint(0, 256, (2, 64), device="cuda")
    with torch.no_grad():
        eager = model(words)
        for layer in model.model.layers:
            layer.compile()
        torch.testing.assert_close(model(words), eager, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backend", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"])
def test_attention_backends_agree(backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    wanted = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
    with sdpa_kernel(getattr(SDPBackend, backend)):
        got = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert (got.float() - wanted).norm() / wanted.norm() < 1e-2


def test_lora_and_its_merge():
    from workshop.adapt.lora import add_lora, merge_lora

    model = add_lora(GPT(TINY).to("cuda"), rank=4)
    assert all(p.is_cuda for p in model.parameters())
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.02)
            assert name
    words = torch.randint(0, 256, (1, 32), device="cuda")
    with torch.no_grad():
        before = model(words)
        torch.testing.assert_close(merge_lora(model)(words), before, **CLOSE)


@pytest.mark.parametrize("double", [False, True])
def test_nf4_is_the_cpus(double):
    from workshop.adapt.nf4 import quantize_nf4

    weight = torch.randn(256, 512)
    here, there = quantize_nf4(weight, double), quantize_nf4(weight.cuda(), double)
    assert torch.equal(
        there.codes().cpu() if callable(there.codes) else there.codes.cpu(),
        here.codes() if callable(here.codes) else here.codes,
    )
    # where scales are rounded too, a mean that differs in its last bit moves some of them by one step of 256
    near = 5e-3 if double else 1e-5
    torch.testing.assert_close(there.dequantize().cpu(), here.dequantize(), rtol=near, atol=1e-6)


@pytest.mark.parametrize("way", ["hand", "bitsandbytes"])
def test_a_step_of_qlora_moves_adapters_alone(way):
    from workshop.adapt.lora import add_lora
    from workshop.adapt.qlora import packed_bytes, quantize_base

    if way == "bitsandbytes":
        pytest.importorskip("bitsandbytes")
    model = add_lora(quantize_base(GPT(TINY).to("cuda", torch.bfloat16), way), rank=4)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    held = packed_bytes(model)
    words = torch.randint(0, 256, (2, 33), device="cuda")
    model(words[:, :-1], words[:, 1:]).backward()
    optimizer.step()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)
    assert packed_bytes(model) == held


@pytest.mark.parametrize("bits", [8, 4, 3])
def test_packed_weights(bits):
    from workshop.compress.quantize import Grid, round_to_nearest
    from workshop.compress.quantize_packed import PackedLinear

    weight, x = torch.randn(128, 256), torch.randn(8, 256)
    grid = Grid(bits, 64)
    here = PackedLinear(round_to_nearest(weight, grid))
    there = PackedLinear(round_to_nearest(weight.cuda(), grid))
    assert there.bytes_held == here.bytes_held
    torch.testing.assert_close(there(x.cuda()).cpu(), here(x), **CLOSE)


def test_gptq_beats_rounding_on_a_gpu_too():
    from workshop.compress.quantize import Grid, output_error, round_to_nearest
    from workshop.compress.quantize_gptq import gptq

    weight, inputs = torch.randn(64, 128, device="cuda"), torch.randn(512, 128, device="cuda")
    inputs[:, :8] *= 10
    grid, hessian = Grid(3, 64), inputs.t() @ inputs
    by_gptq = output_error(weight, gptq(weight, hessian, grid).dequantize(), inputs)
    assert by_gptq < output_error(weight, round_to_nearest(weight, grid).dequantize(), inputs)


def test_two_of_four_by_torchs_kernels():
    from workshop.compress.prune import apply_masks, magnitude, two_of_four
    from workshop.compress.two_four_kernel import use_sparse_kernels

    model = nn.Sequential(nn.Linear(256, 256, bias=False)).to("cuda", torch.float16)
    apply_masks(model, {"0.weight": two_of_four(magnitude(model[0].weight))})
    x = torch.randn(128, 256, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        dense = model(x)
        thin = use_sparse_kernels(model)(x)
    assert (thin - dense).norm() / dense.norm() < 1e-2


def test_a_server_says_what_the_plain_loop_says():
    from workshop.serve.server import Server

    model = GPT(TINY).to("cuda").eval()
    prompt, words = list(range(40, 60)), []
    with torch.no_grad():
        tokens = list(prompt)
        for _ in range(8):
            tokens.append(int(model(torch.tensor([tokens], device="cuda"))[0, -1].argmax()))
        server = Server(model, 16)
        request = server.add(prompt, 8)
        server.run()
        words = request.output
    assert words == tokens[len(prompt) :]
    assert server.cache.keys.is_cuda


@pytest.mark.parametrize("shape", [(64, 200), (4096, 2048)])
def test_the_kernel_in_triton(shape):
    pytest.importorskip("triton")
    from benchmarks.gpu.triton_norm import triton_norm

    x, weight = torch.randn(*shape, device="cuda"), torch.randn(shape[1], device="cuda")
    torch.testing.assert_close(triton_norm(x, weight), F.rms_norm(x, (shape[1],), weight, 1e-6), **CLOSE)
