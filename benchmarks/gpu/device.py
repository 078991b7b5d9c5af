"""(a) What this GPU does before anything is asked of it: products, copies, launches, and the catalogue's."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch

from benchmarks.gpu.stage import NotHere, Row, Stage, catalogue_name, row, seconds_of

QUERY = (
    "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu,"
    "pcie.link.gen.current,pcie.link.width.current,memory.total,memory.used"
)


def run(stage: Stage) -> None:
    """What other stages are judged by first."""
    stage.part("clocks", clocks)
    for kind in ("bf16", "fp8"):
        stage.part(f"products {kind}", lambda kind=kind: products(stage, kind), needs=10)  # type: ignore[misc]
    stage.part("copies", lambda: copies(stage), needs=10)
    stage.part("launches", lambda: launches(stage), needs=10)
    for kind in ("fp16", "tf32", "int8", "fp32"):
        stage.part(f"products {kind}", lambda kind=kind: products(stage, kind), needs=10)  # type: ignore[misc]


def clocks() -> list[Row]:
    """What nvidia-smi says, read before the products run."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise NotHere(f"nvidia-smi does not answer: {error}") from None
    values = [value.strip() for value in done.stdout.splitlines()[0].split(",")]
    return [row("nvidia-smi", None, "", said=dict(zip(QUERY.split(","), values, strict=True)))]


def doctor(stage: Stage) -> list[Row]:
    """`workshop doctor`, in its own words."""
    if stage.size == "ci":
        raise NotHere("the smallest walk leaves the doctor to its own tests")
    done = subprocess.run(
        [sys.executable, "-m", "workshop", "doctor"],
        capture_output=True, text=True, timeout=80, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return [row("workshop doctor, exit status", done.returncode, "", text=done.stdout[-6000:])]


def products(stage: Stage, kind: str) -> list[Row]:
    """FLOP/s of square products of random numbers, beside the rate that the catalogue says can be reached."""
    rows = []
    for size in stage.sized((1024, 2048, 4096, 8192, 16384), (128, 256), (64,)):
        a, b = (torch.randn(size, size, device=stage.device) for _ in range(2))
        work = product_of(kind, a, b)
        seconds = seconds_of(work, stage.sized(20, 3))
        rate = 2 * size**3 / seconds
        rows.append(row(f"{kind} product {size}", rate, "FLOP/s", predicted_rate(stage, kind, size)))
        del a, b, work
    return rows


def product_of(kind: str, a: torch.Tensor, b: torch.Tensor) -> Any:
    """A call that multiplies two square matrices in a format."""
    if kind in ("fp32", "tf32"):
        precision = "high" if kind == "tf32" else "highest"

        def in_fp32() -> torch.Tensor:
            torch.set_float32_matmul_precision(precision)
            return a @ b

        return in_fp32
    if kind in ("bf16", "fp16"):
        dtype = torch.bfloat16 if kind == "bf16" else torch.float16
        left, right = a.to(dtype), b.to(dtype)
        return lambda: left @ right
    if kind == "int8":
        codes = [(x * 20).clamp(-127, 127).to(torch.int8) for x in (a, b.t().contiguous().t())]
        return lambda: torch._int_mm(*codes)
    eight, other = (x.clamp(-448, 448).to(torch.float8_e4m3fn) for x in (a, b.t().contiguous().t()))
    one = torch.ones((), device=a.device)
    if not a.is_cuda:
        from workshop.precision.fp8 import runs_scaled_mm

        if not runs_scaled_mm("cpu"):
            raise NotHere("this CPU build has no torch._scaled_mm")
    return lambda: torch._scaled_mm(
        eight, other, one, one, out_dtype=torch.bfloat16, use_fast_accum=a.is_cuda
    )


def predicted_rate(stage: Stage, kind: str, size: int) -> float | None:
    """What can be reached where the catalogue knows it; in bf16 by the predictor's formula for the shape."""
    if not stage.on_gpu:
        return None
    from workshop.facts.catalogue import device

    spec = device(catalogue_name())
    if kind == "bf16":
        from workshop.predict.serving.engines import device_rates
        from workshop.predict.time.matmul import Product, matmul_seconds

        rates, _ = device_rates(spec)
        peak = spec.reachable_flops.get(kind, spec.peak_flops[kind])
        return (
            2 * size**3 / float(matmul_seconds(rates, peak, spec.memory_bandwidth, Product(size, size, size)))
        )
    return spec.reachable_flops.get(kind, spec.peak_flops.get(kind))


def copies(stage: Stage) -> list[Row]:
    """Bytes/s on the device (read and written), and to and from the host, pinned and not."""
    from workshop.facts.catalogue import device

    num = stage.sized(2**30, 2**22, 2**20)  # bytes: several times any cache
    there = torch.randn(num // 4, device=stage.device)
    copy = torch.empty_like(there)
    seconds = seconds_of(lambda: copy.copy_(there), stage.sized(20, 3))
    peak = device(catalogue_name()).memory_bandwidth if stage.on_gpu else None
    rows = [row("copy on the device, read and written", 2 * num / seconds, "B/s", peak)]
    for pinned in (True, False) if stage.on_gpu else (False,):
        host = torch.randn(num // 4, pin_memory=pinned)
        words = "pinned" if pinned else "pageable"
        for name, work in (
            ("host to device", lambda host=host: there.copy_(host, non_blocking=True)),
            ("device to host", lambda host=host: host.copy_(there, non_blocking=True)),
        ):
            rows.append(row(f"{name}, {words}", num / seconds_of(work, stage.sized(10, 3)), "B/s"))
    return rows


def launches(stage: Stage) -> list[Row]:
    """Seconds of the smallest kernel: queued in a row, waited for each time, replayed from a graph."""
    import time

    x, count = torch.zeros(1, device=stage.device), stage.sized(2000, 200, 50)
    synchronise = torch.cuda.synchronize if stage.on_gpu else lambda: None

    def queued(each: bool) -> float:
        x.add_(1)
        synchronise()
        began = time.perf_counter()
        for _ in range(count):
            x.add_(1)
            if each:
                synchronise()
        synchronise()
        return (time.perf_counter() - began) / count

    rows = [row("a launch, queued", queued(False), "s"), row("a launch, waited for", queued(True), "s")]
    if stage.on_gpu:
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            for _ in range(100):
                x.add_(1)
        rows.append(row("a launch, in a graph of 100", seconds_of(graph.replay) / 100, "s"))
    return rows


def calibrated(stage: Stage) -> list[Row]:
    """`measure.calibrate` of the host: its products, its memory, gloo between two ranks. Nothing is saved."""
    if stage.size == "ci":
        raise NotHere("the smallest walk leaves calibrate() to its own tests")
    from workshop.measure.machine import calibrate

    rates = calibrate(2, repeats=stage.sized(5, 1), save=False)
    rows = [row(f"host, {kind}", rate, "FLOP/s") for kind, rate in rates["peak_flops"].items()]
    rows.append(row("host, memory", rates["memory_bandwidth"], "B/s"))
    rows.append(row("gloo all-reduce", rates["bytes_per_second"], "B/s", latency=rates["latency_seconds"]))
    return rows
