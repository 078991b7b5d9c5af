"""(f) Fewer bits: int8, int4 and NF4 kernels, QLoRA's peak, 2:4 sparsity, each beside what bytes allow.

One token at a time a linear layer reads every weight once, so bytes/s bound it: the bound beside each line is
the layer's bytes in that format over the catalogue's bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.stage import NotHere, Row, Stage, catalogue_name, row, seconds_of


def run(stage: Stage) -> None:
    """Kernels, then what they are for."""
    for kind in ("bf16", "int8 by hand", "int4 by hand", "nf4 by hand", "int8 torch", "int8 torchao",
                 "int4 torchao", "nf4 bitsandbytes"):  # fmt: skip
        stage.part(f"one token, {kind}", lambda kind=kind: one_token(stage, kind), needs=12)
    stage.part("2:4 sparse product", lambda: sparse(stage), needs=6)
    for way in ("hand", "bitsandbytes"):
        stage.part(f"QLoRA, {way}", lambda way=way: qlora(stage, way), needs=10)


def one_token(stage: Stage, kind: str) -> list[Row]:
    """Seconds of a layer for one row of input, eight layers in turn so that no cache keeps the weights."""
    inputs, outputs = stage.sized((8192, 28672), (256, 256))
    number = stage.sized(8, 1)
    layers = [
        nn.Linear(inputs, outputs, bias=False, device=stage.device, dtype=torch.bfloat16)
        for _ in range(number)
    ]
    x = torch.randn(1, inputs, device=stage.device, dtype=torch.bfloat16)
    works, held = zip(*(changed(layer, kind, x) for layer in layers), strict=True)

    def work() -> None:
        for one in works:
            one()

    seconds = seconds_of(work, stage.sized(10, 2)) / number
    bound = None
    if stage.on_gpu:
        from workshop.facts.catalogue import device

        bound = held[0] / device(catalogue_name()).memory_bandwidth
    return [row("a layer", seconds, "s", bound, weight_bytes=held[0], shape=[inputs, outputs])]


def changed(layer: nn.Linear, kind: str, x: torch.Tensor) -> tuple[Callable[[], Any], int]:
    """A call of the layer in a format, and the bytes of its weights."""
    weight = layer.weight.detach()
    if kind == "bf16":
        return lambda: layer(x), weight.nbytes
    if kind.endswith("by hand"):
        return _by_hand(layer, kind.split()[0], x)
    if kind == "int8 torch":
        scale = weight.abs().amax(1) / 127
        codes = (weight / scale[:, None]).round().to(torch.int8)
        return lambda: torch._weight_int8pack_mm(x, codes, scale), codes.nbytes + scale.nbytes
    if kind.endswith("torchao"):
        return _torchao(layer, int(kind[3]), x)
    if not x.is_cuda:
        raise NotHere("bitsandbytes' 4-bit kernel is measured on a GPU")
    four = bitsandbytes_nf4(weight)
    return lambda: four(x), four.weight.nbytes


def bitsandbytes_nf4(weight: torch.Tensor) -> Any:
    """bitsandbytes' layer of this weight, made without the numbers that it would draw and lose."""
    import bitsandbytes

    outputs, inputs = weight.shape
    four = bitsandbytes.nn.Linear4bit(
        inputs, outputs, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4", device="meta"
    )
    four.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, quant_type="nf4", module=four)
    return four.to(weight.device)


def _torchao(layer: nn.Linear, bits: int, x: torch.Tensor) -> tuple[Callable[[], Any], int]:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    if bits == 4 and not x.is_cuda:
        raise NotHere("torchao's packed 4-bit kernel is measured on a GPU")
    whole = nn.Sequential(layer)
    quantize_(whole, Int8WeightOnlyConfig() if bits == 8 else torchao_int4())
    return lambda: whole(x), layer.in_features * layer.out_features * bits // 8


def torchao_int4() -> Any:
    """Four bits as torch's own kernel reads them; torchao's default layout wants one more package."""
    from torchao.quantization import Int4WeightOnlyConfig
    from torchao.quantization.quantize_.workflows import Int4PackingFormat

    return Int4WeightOnlyConfig(group_size=128, int4_packing_format=Int4PackingFormat.TILE_PACKED_TO_4D)


def _by_hand(layer: nn.Linear, form: str, x: torch.Tensor) -> tuple[Callable[[], Any], int]:
    if form == "nf4":
        from workshop.adapt.nf4 import quantize_nf4

        packed = quantize_nf4(layer.weight.detach())
        return lambda: x @ packed.dequantize().to(x.dtype).t(), packed.num_bytes
    from workshop.compress.quantize import Grid, round_to_nearest
    from workshop.compress.quantize_packed import PackedLinear

    bits = int(form[3])
    grid = Grid(bits, 64 if bits == 4 else None)
    packed_layer = PackedLinear(round_to_nearest(layer.weight.detach(), grid))
    packed_layer = packed_layer.to(x.device)
    return lambda: packed_layer(x), packed_layer.bytes_held


def sparse(stage: Stage) -> list[Row]:
    """A product with a 2:4 weight by torch's own semi-structured kernels, beside the dense one."""
    if not stage.on_gpu:
        raise NotHere("a CPU has no 2:4 kernels")
    from torch.sparse import to_sparse_semi_structured

    rows = []
    for size in (4096, 8192, 16384):
        w = torch.randn(size, size, device=stage.device, dtype=torch.bfloat16)
        kept = w.view(-1, 4).abs().argsort(1).argsort(1) >= 2
        w = (w.view(-1, 4) * kept).view(size, size)
        x = torch.randn(size, 4096, device=stage.device, dtype=torch.bfloat16)
        thin = to_sparse_semi_structured(w)
        dense, half = seconds_of(lambda w=w, x=x: w @ x), seconds_of(lambda thin=thin, x=x: thin @ x)
        error = float(((thin @ x) - (w @ x)).float().norm() / (w @ x).float().norm())
        rows.append(row(f"{size}: times dense", dense / half, "", 2.0, relative_error=error))
    return rows


def qlora(stage: Stage, way: str) -> list[Row]:
    """Peak bytes of a step with a base in NF4 and adapters, and the packed bytes that it holds."""
    from workshop.adapt.lora import add_lora
    from workshop.adapt.qlora import packed_bytes, quantize_base
    from workshop.models.gpt import GPT, GPTConfig

    if way == "bitsandbytes" and not stage.on_gpu:
        raise NotHere("bitsandbytes is measured on a GPU")
    layers, hidden, batch, length = stage.sized((24, 2048, 8, 1024), (2, 64, 2, 32))
    config = GPTConfig(
        vocab_size=stage.sized(32000, 256), hidden_size=hidden, num_layers=layers,
        num_heads=hidden // 64, num_kv_heads=hidden // 64, intermediate_size=hidden * 3,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(stage.device):  # where a billion numbers are drawn in no time
        model: Any = GPT(config).to(torch.bfloat16)
    model = add_lora(quantize_base(model, way), rank=16).to(stage.device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    words = torch.randint(0, config.vocab_size, (batch, length + 1), device=stage.device)
    if stage.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        model(words[:, :-1], words[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    peak = torch.cuda.max_memory_allocated() if stage.on_gpu else None
    return [row("packed base", packed_bytes(model), "B"), row("peak of a step", peak, "B")]
