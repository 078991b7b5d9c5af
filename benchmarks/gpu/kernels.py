"""(h) Lesson 16's kernel in Triton, beside eager PyTorch, the compiler's, and the bytes that it must move."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.stage import NotHere, Row, Stage, catalogue_name, row, seconds_of


def run(stage: Stage) -> None:
    """The norm, then attention."""
    for shape in stage.sized(((16384, 2048), (8192, 8192), (4096, 3000)), ((16, 64),)):
        stage.part(f"norm {shape}", lambda shape=shape: norms(stage, shape), needs=12)
    for length in stage.sized((1024, 4096, 16384), (64,)):
        stage.part(f"attention {length}", lambda length=length: attention(stage, length), needs=8)


def eager(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMSNorm, an operator at a time."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def norms(stage: Stage, shape: tuple[int, int]) -> list[Row]:
    """Seconds of each way, all compared with the first, in fp32."""
    x, weight = torch.randn(*shape, device=stage.device), torch.randn(shape[1], device=stage.device)
    ways: dict[str, Any] = {
        "eager": lambda: eager(x, weight),
        "torch's rms_norm": lambda: F.rms_norm(x, (shape[1],), weight, 1e-6),
    }
    if stage.size != "ci":
        compiled = torch.compile(eager, dynamic=False)  # else the second shape gets a kernel for any shape
        ways["compiled"] = lambda: compiled(x, weight)
    if stage.on_gpu:
        if importlib.util.find_spec("triton") is None:
            raise NotHere("triton is not installed")
        from benchmarks.gpu.triton_norm import triton_norm

        ways["Triton, by hand"] = lambda: triton_norm(x, weight)
    bound = None
    if stage.on_gpu:
        from workshop.facts.catalogue import device

        bound = 2 * x.nbytes / device(catalogue_name()).memory_bandwidth
    rows, right = [], eager(x, weight)
    for name, work in ways.items():
        worst = float((work() - right).abs().max())
        if worst > 1e-3:
            raise ValueError(f"{name} is off by {worst}")
        rows.append(row(name, seconds_of(work, stage.sized(50, 3)), "s", bound, worst_difference=worst))
    return rows


def attention(stage: Stage, length: int) -> list[Row]:
    """Forward and backward of causal attention: the library's choice, and each of its kernels by name."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    heads, width = stage.sized((16, 128), (2, 16))
    batch = max(1, stage.sized(16384, 64) // length)
    dtype = torch.bfloat16 if stage.on_gpu else torch.float32
    q, k, v = (
        torch.randn(batch, heads, length, width, device=stage.device, dtype=dtype, requires_grad=True)
        for _ in range(3)
    )
    upstream = torch.randn_like(q)
    flops = 3.5 * 2 * 2 * batch * heads * length**2 * width / 2  # causal: half; backward 2.5 times forward
    rows = []
    backends = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
    if stage.on_gpu:
        backends |= {"efficient": SDPBackend.EFFICIENT_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    for name, backend in backends.items():
        if name == "math" and length > 4096:
            continue

        def work(backend: Any = backend) -> None:
            with sdpa_kernel(backend):
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                torch.autograd.grad(out, (q, k, v), upstream)  # nothing is added up into .grad

        try:
            seconds = seconds_of(work, stage.sized(10, 2))
        except RuntimeError as error:
            rows.append(row(name, None, "FLOP/s", why=str(error)[:200]))
            continue
        rows.append(row(name, flops / seconds, "FLOP/s", predicted(stage, name, length, width)))
    return rows


def predicted(stage: Stage, name: str, length: int, width: int) -> float | None:
    """FLOP/s of a kernel, forward and backward, by what others have timed; None where nobody has.

    The predictor knows cuDNN's kernel as the third generation, PyTorch's own as the second.
    """
    from workshop.predict.time.attention import MEASURED_ON, attention_rates

    generation = {"flash": "flash-2", "cudnn": "flash-3"}.get(name)
    card = catalogue_name() if stage.on_gpu else ""
    place = next((place for place, timed in MEASURED_ON.items() if card in timed), None)
    if not generation or not place:
        return None
    rates = attention_rates(place, generation)
    forward, backward = (float(rates.rate(True, way, length, width)) for way in ("forward", "backward"))
    return 3.5e12 / (1 / forward + 2.5 / backward)
