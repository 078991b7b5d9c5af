"""(e) FP8: the product itself, a linear layer forward and backward, and 200 steps of a model, beside bf16.

By hand (`precision.fp8`), torchao (a layer compiled, as its pages want it; a model through Accelerate),
Transformer Engine where it is installed. A speed without the loss beside it says nothing, so both are told,
and the memory. The bare product is of numbers that are FP8 already; a layer rounds its input, its weight and
its gradient in each step, and the target is for that.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.stage import NotHere, Row, Stage, row, seconds_of
from workshop.precision.fp8 import BF16, Fp8Linear, Recipe, runs_scaled_mm
from workshop.precision.fp8_libraries import LIBRARIES, Unavailable, prepare_fp8

# rows (tokens), inputs, outputs: the linear layers of 1.3B, 8B and 70B models
LAYERS = ((16384, 2048, 8192), (8192, 4096, 14336), (8192, 8192, 28672))
WANTED = 1.25  # times bf16, forward and backward of the largest, rounding included


def run(stage: Stage) -> None:
    """Products, the layer that the target is for, layers by hand, training, and the other layers."""
    shapes = stage.sized(LAYERS, ((32, 32, 64),))
    for shape in shapes:
        stage.part(f"products {shape}", lambda shape=shape: products(stage, shape), needs=4)
    largest, others = shapes[-1], shapes[:-1]
    stage.part(f"torchao {largest}", lambda: torchao_layer(stage, largest, WANTED), needs=45)
    for shape in shapes:
        stage.part(f"by hand {shape}", lambda shape=shape: by_hand(stage, shape), needs=6)
    for through in ("bf16", *LIBRARIES):
        stage.part(f"200 steps, {through}", lambda through=through: steps(stage, through), needs=30)
    for shape in others:
        stage.part(f"torchao {shape}", lambda shape=shape: torchao_layer(stage, shape), needs=45)


def bytes_taken(work: Callable[[], Any]) -> int | None:
    """The peak of a call beyond what was there before it, on a GPU."""
    if not torch.cuda.is_available():
        return None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return torch.cuda.max_memory_allocated() - before


def products(stage: Stage, shape: tuple[int, int, int]) -> list[Row]:
    """One product x W^T by `torch._scaled_mm` and in bf16, by scales and accumulation."""
    rows, inputs, outputs = shape
    if not runs_scaled_mm(stage.device.type):
        raise NotHere(f"torch._scaled_mm does not run on this {stage.device.type}")
    x = torch.randn(rows, inputs, device=stage.device)
    w = torch.randn(outputs, inputs, device=stage.device)
    flops = 2 * rows * inputs * outputs
    left, right = x.bfloat16(), w.bfloat16()
    base = seconds_of(lambda: left @ right.t(), stage.sized(20, 3))
    lines = [row("bf16", flops / base, "FLOP/s")]
    one = torch.ones((), device=stage.device)
    by_row = torch.ones(rows, 1, device=stage.device), torch.ones(1, outputs, device=stage.device)
    eight, other = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn).t()
    for words, scales, fast in (
        ("by tensor, fast accumulation", (one, one), True),
        ("by tensor", (one, one), False),
        ("by row", by_row, False),
        ("by row, fast accumulation", by_row, True),
    ):
        if not stage.on_gpu and (fast or scales is by_row):
            continue

        def work(scales: Any = scales, fast: bool = fast) -> Any:
            return torch._scaled_mm(eight, other, *scales, out_dtype=torch.bfloat16, use_fast_accum=fast)

        try:
            seconds = seconds_of(work, stage.sized(20, 3))
        except RuntimeError as error:  # a way that this build refuses leaves the others their numbers
            lines.append(row(words, None, "FLOP/s", why=str(error)[:200]))
            continue
        lines.append(row(words, flops / seconds, "FLOP/s", takes_bytes=bytes_taken(work)))
        lines.append(row(f"{words}, times bf16", base / seconds, ""))
    return lines


def torchao_layer(stage: Stage, shape: tuple[int, int, int], wanted: float | None = None) -> list[Row]:
    """Forward and backward of one layer by torchao, compiled, beside the same layer in bf16, compiled too."""
    if importlib.util.find_spec("torchao") is None:
        raise NotHere("torchao is not installed")
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    rows, inputs, outputs = shape
    x = torch.randn(rows, inputs, device=stage.device, dtype=torch.bfloat16, requires_grad=True)
    upstream = torch.randn(rows, outputs, device=stage.device, dtype=torch.bfloat16)
    lines, base = [], 0.0
    torch.compiler.reset()  # else the eighth compiled layer of a process would be the last
    for name in ("bf16", "tensorwise", "rowwise") if stage.on_gpu else ("bf16", "tensorwise"):
        linear = nn.Linear(inputs, outputs, bias=False, device=stage.device, dtype=torch.bfloat16)
        net = nn.Sequential(linear)
        if name != "bf16":
            from_name = Float8LinearConfig.from_recipe_name
            how = from_name(name) if stage.device.type == "cuda" else Float8LinearConfig(emulate=True)
            convert_to_float8_training(net, config=how)
        if stage.on_gpu:
            net.compile(dynamic=False)

        def work(net: nn.Sequential = net) -> None:
            torch.autograd.grad(net(x), (x, net[0].weight), upstream)

        try:
            seconds = seconds_of(work, stage.sized(10, 2))
        except RuntimeError as error:
            lines.append(row(f"{name}, forward and backward", None, "s", why=str(error)[:200]))
            continue
        base = seconds if name == "bf16" else base
        lines.append(row(f"{name}, forward and backward", seconds, "s", takes_bytes=bytes_taken(work)))
        if name != "bf16" and base:
            target = wanted if name == "tensorwise" and stage.on_gpu else None
            lines.append(row(f"{name}, times bf16", base / seconds, "", wanted=target))
    return lines


def by_hand(stage: Stage, shape: tuple[int, int, int]) -> list[Row]:
    """Forward and backward of one layer, rounding included, beside the same layer in bf16."""
    rows, inputs, outputs = shape
    lines, base = [], 0.0
    plain = nn.Linear(inputs, outputs, bias=False, device=stage.device, dtype=torch.bfloat16)
    x = torch.randn(rows, inputs, device=stage.device, dtype=torch.bfloat16, requires_grad=True)
    upstream = torch.randn(rows, outputs, device=stage.device, dtype=torch.bfloat16)
    scalings = ("tensor", "delayed", "row") if stage.on_gpu else ("tensor",)
    for words, recipe in (("bf16", None), *((scaling, Recipe(scaling)) for scaling in scalings)):
        layer: nn.Module = plain
        if recipe is not None:
            eight = Fp8Linear(inputs, outputs, bias=False, device=stage.device, dtype=torch.bfloat16)
            eight.recipe, eight.histories = recipe, {}
            layer = eight

        def work(layer: nn.Module = layer) -> None:
            torch.autograd.grad(layer(x), (x, layer.weight), upstream)

        try:
            seconds = seconds_of(work, stage.sized(10, 2))
        except RuntimeError as error:
            lines.append(row(f"{words}, forward and backward", None, "s", why=str(error)[:200]))
            continue
        base = base or seconds
        beside = {"times_bf16": base / seconds, "takes_bytes": bytes_taken(work)}
        lines.append(row(f"{words}, forward and backward", seconds, "s", **beside))
    return lines


def steps(stage: Stage, through: str) -> list[Row]:
    """The loss after 200 steps of a small GPT, seconds a step, peak bytes."""
    from workshop.models.gpt import GPT, GPTConfig
    from workshop.models.text import TextBatches

    layers, hidden, batch, length = stage.sized((12, 1024, 16, 512), (2, 64, 2, 32))
    count = stage.sized(200, 3, 2)
    torch.manual_seed(0)
    config = GPTConfig(
        vocab_size=256, hidden_size=hidden, num_layers=layers, intermediate_size=hidden * 3,
        num_heads=hidden // 64, num_kv_heads=hidden // 64,
    )  # fmt: skip
    model: nn.Module = GPT(config).to(stage.device)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=3e-4)
    inside: Callable[[], Any] = lambda: torch.autocast(stage.device.type, torch.bfloat16)  # noqa: E731
    try:
        if through == "bf16":
            from workshop.precision.fp8_swap import swap

            swap(model, BF16) if not stage.on_gpu else None
        else:
            model, optimizer, around = prepare_fp8(model, optimizer, through, Recipe("tensor"))
            # by hand it leaves the rest as it was, and the rest is to run in bf16 as beside it
            inside = inside if through == "by-hand" else around
    except Unavailable as why:
        raise NotHere(str(why)) from None
    losses, text = [], TextBatches(length, batch)
    if stage.on_gpu:
        torch.cuda.reset_peak_memory_stats()

    def step(number: int) -> None:
        (tokens, targets), *_ = text.step(number, stage.device)
        with inside():
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())

    numbers = iter(range(10**6))
    for _ in range(count):
        step(next(numbers))
    seconds = seconds_of(lambda: step(next(numbers)), stage.sized(20, 2), warm=1)
    last = torch.stack(losses[:count][-10:]).float().mean()
    peak = torch.cuda.max_memory_allocated() if stage.on_gpu else None
    return [
        row(f"loss after {count} steps", float(last), ""),
        row("a step", seconds, "s"),
        row("peak", peak, "B"),
    ]
