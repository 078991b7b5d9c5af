"""(d) Tokens/s and MFU of four loops at three sizes in bf16: ours, Trainer, Lightning, and a bare one.

The contenders are those of `benchmarks.train_loop_peers`, with the same weights and text; the bare loop is
forward, backward, step on a resident batch, as nanochat's inner loop is, and the ceiling for the rest. Each
runs in a process of its own (one rank, which needs no DDP and gets none), so that one that fails or hangs
leaves the others. MFU counts the model's own FLOPs (arXiv 2204.02311, appendix B) against the catalogue's
dense bf16 peak.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.stage import Row, Stage, catalogue_name, row
from workshop.cli.server import free_port
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.predict.flops import step_flops

MODELS = {
    "125m": (ModelSpec("125m", 12, 768, 12, 50304, ffn_hidden_size=2048, tied_embeddings=True), 32),
    "350m": (ModelSpec("350m", 24, 1024, 16, 50304, ffn_hidden_size=2816, tied_embeddings=True), 24),
    # Rehearsed without a compiler: 102 GB. A step's clipping and optimizer take as long for any batch, so the
    # batch is as large as an H200 holds with room to spare; 32 sequences were 129 GB.
    "1.3b": (ModelSpec("1.3b", 24, 2048, 16, 50304, ffn_hidden_size=5504), 24),
}
TOYS = {"toy": (ModelSpec("toy", 2, 64, 4, 256, ffn_hidden_size=176, tied_embeddings=True), 2)}
LOOPS = ("workshop", "transformers.Trainer", "lightning", "bare", "accelerate")
WANTED_MFU = {"1.3b": 0.50}
SECONDS = 150.0  # after which a contender hangs
NEEDED = {
    "1.3b": 50.0,
    "350m": 40.0,
    "125m": 30.0,
}  # seconds that one takes: imports, compiling, blocks of steps
LARGE = 120e9  # bytes of a GPU that holds the batches above: an H200 does, an H100 does not
PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def plan(size: str) -> list[tuple[str, str, bool, bool]]:
    """Model, loop, compiled, bf16: what decides comes first, then all that is compiled, then the rest."""
    if size != "full":
        loops = ("workshop", "bare", "lightning") if size == "toy" else ("bare",)
        in_bf16 = [("toy", "lightning", False, True)] if size == "toy" else []  # where a GPU's contenders go
        return [("toy", loop, False, False) for loop in loops] + in_bf16
    return [
        (name, loop, compiled, True)
        for compiled in (True, False)
        for name in reversed(MODELS)
        for loop in LOOPS
    ]


def run(stage: Stage) -> None:
    """Every contender, each in a process of its own."""
    for name, loop, compiled, bf16 in plan(stage.size):
        words = f"{name}, {loop}{', compiled' if compiled else ''}"
        words += ", bf16" if bf16 and stage.size != "full" else ""
        stage.part(
            words,
            lambda n=name, one=loop, c=compiled, b=bf16: one_loop(stage, n, one, c, b),  # type: ignore[misc]
            needs=NEEDED.get(name, 5.0) if stage.on_gpu else 5,
        )


def sequences(name: str, size: str) -> int:
    """How many are trained on at once: half of the largest model's, about 62 GB, where the GPU is smaller."""
    wanted = (MODELS if size == "full" else TOYS)[name][1]
    if name != "1.3b" or not torch.cuda.is_available():
        return wanted
    return wanted if torch.cuda.get_device_properties(0).total_memory > LARGE else wanted // 2


def one_loop(stage: Stage, name: str, loop: str, compiled: bool, bf16: bool) -> list[Row]:
    """Start a contender, and put its rate beside the predictor's."""
    spec = (MODELS if stage.size == "full" else TOYS)[name][0]
    steps, blocks = (12, 2) if name == "1.3b" else (16, 3)
    job = {
        "model": {**vars(spec)}, "loop": loop, "compile": compiled, "bf16": bf16,
        "seq_len": stage.sized(1024, 32), "micro_batch": sequences(name, stage.size),
        "steps": stage.sized(steps, 6), "blocks": blocks,
    }  # fmt: skip
    place = dict(zip(PLACE, "0101", strict=True))
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port(20_000))}
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.throughput", json.dumps(job)],
        env={**os.environ, **place}, capture_output=True, text=True,
        timeout=min(SECONDS, max(10.0, stage.left() - 5)),
    )  # fmt: skip
    if told.returncode:
        raise RuntimeError(f"{loop} ended with {told.returncode}: {told.stderr[-500:]}")
    found = json.loads(told.stdout.strip().splitlines()[-1])
    tokens = job["micro_batch"] * job["seq_len"]
    rate = tokens / found["seconds"]
    beside = {"loss": found["loss"], "peak_bytes": found["peak_bytes"], "sequences": job["micro_batch"]}
    rows = [row("tokens/s", rate, "tokens/s", **beside)]
    if stage.on_gpu:
        from workshop import predict_step
        from workshop.facts.catalogue import device

        cluster = f"1x{catalogue_name()}"
        planned = Run(spec, cluster, Layout(precision="amp-bf16"), job["micro_batch"], job["seq_len"])
        rows[0]["predicted"] = predict_step(planned).tokens_per_second
        peak = device(catalogue_name()).peak_flops["bf16"]
        mfu = rate * step_flops(planned).model / planned.tokens_per_step / peak
        rows.append(row("MFU", mfu, "", WANTED_MFU.get(name)))
    return rows


def bare(job: argparse.Namespace, device: torch.device, folder: Path) -> Callable[[], float]:
    """Forward, backward, step; one batch that is there already; nothing is read until the end."""
    from benchmarks.train_loop_peers import BETAS, RATE, compiled, fresh_model

    def block() -> float:
        model = compiled(fresh_model(job, device), job)
        fused = device.type == "cuda"
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, weight_decay=0.0, fused=fused)
        spec = json.loads(job.model)
        words = torch.randint(0, spec["vocab_size"], (job.micro_batch, job.seq_len + 1), device=device)
        for _ in range(job.steps):
            with torch.autocast(device.type, torch.bfloat16, enabled=job.bf16):
                loss = model(words[:, :-1], words[:, 1:])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return block


def turns(clock: Any, block: Callable[[], float], device: torch.device, blocks: int = 3) -> dict[str, float]:
    """Blocks (two where they take long), each with nothing left of the last. The first warms up."""
    seconds, loss = [], 0.0
    for turn in range(blocks):
        gc.collect()  # compiled layers and peers' trainers lie in cycles, and keep gigabytes
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        wall, _, loss = clock.block(block)
        seconds.append(wall)
        if turn == 1 and time.perf_counter() - began > 20:
            break
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return {"seconds": statistics.median(seconds[1:]), "loss": loss, "peak_bytes": peak}


def contend(told: dict[str, Any]) -> dict[str, float]:
    """One contender as a rank of the default group; seconds a step, the loss it ended with, peak bytes."""
    from benchmarks.train_loop_rank import CONTENDERS, Clock
    from workshop.train.group import join_group

    job = argparse.Namespace(**told)
    job.model, job.global_batch = json.dumps(told["model"], default=str), job.micro_batch
    warnings.filterwarnings("ignore")
    device = join_group()
    for (
        name
    ) in PLACE:  # else Accelerate puts one rank into DDP, which copies gradients and cuts compiled layers
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        make = bare if job.loop == "bare" else CONTENDERS[job.loop]
        block = make(job, device, Path(folder))
        return turns(Clock(device, job.steps), block, device, told.get("blocks", 3))


def main() -> None:
    """The process of one contender; its last line is JSON."""
    import torch.distributed as dist

    print(json.dumps(contend(json.loads(sys.argv[1]))))
    sys.stdout.flush()
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
