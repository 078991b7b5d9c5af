"""(d) Tokens/s and MFU of four loops at three sizes in bf16: ours, Trainer, Lightning, and a bare one.

The contenders are those of `benchmarks.train_loop_peers`, with the same weights and text; the bare loop is
forward, backward, step on a resident batch, as nanochat's inner loop is, and the ceiling for the rest. Each
runs in a process of its own (one rank, which needs no DDP and gets none), so that one that fails or hangs
leaves the others. While one trains, the next import what they need and wait. MFU counts the model's own
FLOPs (arXiv 2204.02311, appendix B) against the catalogue's dense bf16 peak.
"""

from __future__ import annotations

import argparse
import gc
import importlib
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
from benchmarks.gpu.step_profile import LONGEST, by_kind, kernel_seconds
from workshop.cli.server import free_port
from workshop.facts.implementation import implementation
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
LIBRARY = {
    "transformers.Trainer": "transformers.trainer",
    "lightning": "lightning",
    "accelerate": "accelerate",
}
WANTED_MFU = {"1.3b": 0.50}
SECONDS = 150.0  # after which a contender hangs
NEEDED = {
    "1.3b": 35.0,
    "350m": 25.0,
    "125m": 20.0,
}  # seconds that one takes: imports, compiling, blocks of steps
AHEAD = 2  # contenders that import while one trains
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
        for loops in (LOOPS[:4], LOOPS[4:])
        for name in reversed(MODELS)
        for loop in loops
    ]


class Contender:
    """The process of one contender: it imports what it needs at once, and trains when it is told to."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.throughput", json.dumps(job)],
            env={**os.environ, **dict(zip(PLACE, "0101", strict=True)), "MASTER_ADDR": "127.0.0.1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def train(self, seconds: float) -> dict[str, float]:
        """Let it train; what it measured. TimeoutExpired or RuntimeError where that failed."""
        try:
            output, errors = self.child.communicate(f"{free_port(20_000)}\n", timeout=seconds)
        finally:
            self.end()
        if self.child.returncode:
            raise RuntimeError(f"{self.job['loop']} ended with {self.child.returncode}: {errors[-1500:]}")
        measured: dict[str, float] = json.loads(output.strip().splitlines()[-1])
        return measured

    def end(self) -> None:
        """Nothing of it is left; once it has ended by itself, this does nothing."""
        if self.child.poll() is None:
            self.child.kill()
            self.child.communicate()


def run(stage: Stage) -> None:
    """Every contender, each in a process of its own, with those that come next importing beside it."""
    plans = [(words(stage, one), job_of(stage, *one)) for one in plan(stage.size)]
    ours = plans[0][1]  # the largest model
    plans.insert(3, (f"{ours['model']['name']}, kernels of a step", {**ours, "kernels": True}))
    jobs = dict(plans)
    to_come = [name for name in jobs if not stage.is_settled(name)]
    waiting: dict[str, Contender] = {}
    try:
        for place, name in enumerate(to_come):
            for soon in to_come[place : place + 1 + AHEAD]:
                if soon not in waiting:
                    waiting[soon] = Contender(jobs[soon])
            contender = waiting.pop(name)
            needs = NEEDED.get(contender.job["model"]["name"], 5.0) if stage.on_gpu else 5.0
            work = kernels_of_a_step if contender.job.get("kernels") else one_loop
            had_its_turn = stage.part(name, lambda one=contender, work=work: work(stage, one), needs)  # type: ignore[misc]
            contender.end()
            if not had_its_turn and stage.left() < min(NEEDED.values()):
                break  # else a smaller model may still have its turn
    finally:
        for contender in waiting.values():
            contender.end()


def words(stage: Stage, one: tuple[str, str, bool, bool]) -> str:
    """The part's name."""
    name, loop, compiled, bf16 = one
    text = f"{name}, {loop}{', compiled' if compiled else ''}"
    return text + (", bf16" if bf16 and stage.size != "full" else "")


def sequences(name: str, size: str) -> int:
    """How many are trained on at once: half of the largest model's, about 62 GB, where the GPU is smaller."""
    wanted = (MODELS if size == "full" else TOYS)[name][1]
    if name != "1.3b" or not torch.cuda.is_available():
        return wanted
    return wanted if torch.cuda.get_device_properties(0).total_memory > LARGE else wanted // 2


def job_of(stage: Stage, name: str, loop: str, compiled: bool, bf16: bool) -> dict[str, Any]:
    """What a contender is told."""
    spec = (MODELS if stage.size == "full" else TOYS)[name][0]
    steps, blocks = (12, 2) if name == "1.3b" else (16, 3)
    return {
        "model": {**vars(spec)}, "loop": loop, "compile": compiled, "bf16": bf16,
        "seq_len": stage.sized(1024, 32), "micro_batch": sequences(name, stage.size),
        "steps": stage.sized(steps, 6), "blocks": blocks,
    }  # fmt: skip


def one_loop(stage: Stage, contender: Contender) -> list[Row]:
    """Let a contender train, and put its rate beside the predictor's."""
    job = contender.job
    measured = contender.train(min(SECONDS, max(10.0, stage.left() - 5)))
    tokens = job["micro_batch"] * job["seq_len"]
    rate = tokens / measured.pop("seconds")
    beside = {**measured, "sequences": job["micro_batch"]}
    rows = [row("tokens/s", rate, "tokens/s", **beside)]
    if stage.on_gpu:
        from workshop import predict_step
        from workshop.facts.catalogue import device

        cluster = f"1x{catalogue_name()}"
        spec = ModelSpec(**job["model"])
        how = implementation("workshop", compile=job["compile"])
        layout = Layout(precision="amp-bf16")
        planned = Run(spec, cluster, layout, job["micro_batch"], job["seq_len"], implementation=how)
        rows[0]["predicted"] = predict_step(planned).tokens_per_second
        peak = device(catalogue_name()).peak_flops["bf16"]
        mfu = rate * step_flops(planned).model / planned.tokens_per_step / peak
        rows.append(row("MFU", mfu, "", wanted=WANTED_MFU.get(spec.name)))
    return rows


def kernels_of_a_step(stage: Stage, contender: Contender) -> list[Row]:
    """What a step's seconds on the device are for, and its longest kernels by name."""
    seconds = contender.train(min(SECONDS, max(10.0, stage.left() - 5)))
    total = sum(seconds.values())
    longest = dict(sorted(seconds.items(), key=lambda pair: -pair[1])[:LONGEST])
    rows = [row(kind, took, "s", share=took / total) for kind, took in by_kind(seconds).items()]
    return [*rows, row("all kernels", total, "s", longest=longest)]


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


def contend(wanted: dict[str, Any]) -> dict[str, float]:
    """One contender as a rank of the default group; seconds a step, the loss it ended with, peak bytes.

    Or, where it is asked for ``kernels``, seconds a step of each of them.
    """
    from benchmarks.train_loop_rank import CONTENDERS, Clock
    from workshop.train.group import join_group

    job = argparse.Namespace(**wanted)
    job.model, job.global_batch = json.dumps(wanted["model"], default=str), job.micro_batch
    warnings.filterwarnings("ignore")
    device = join_group()
    for name in PLACE:  # else Accelerate puts one rank into DDP, which copies gradients and cuts layers
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        make = bare if job.loop == "bare" else CONTENDERS[job.loop]
        block = make(job, device, Path(folder))
        if wanted.get("kernels"):
            return kernel_seconds(block, job.steps)
        return turns(Clock(device, job.steps), block, device, wanted.get("blocks", 3))


def main() -> None:
    """The process of one contender; its last line is JSON."""
    import torch.distributed as dist

    wanted = json.loads(sys.argv[1])
    importlib.import_module("benchmarks.train_loop_rank")
    if wanted["loop"] in LIBRARY:
        importlib.import_module(LIBRARY[wanted["loop"]])
    os.environ["MASTER_PORT"] = sys.stdin.readline().strip()
    print(json.dumps(contend(wanted)))
    sys.stdout.flush()
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
