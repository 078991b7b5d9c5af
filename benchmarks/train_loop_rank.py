"""The rank's half of benchmarks/train_loop.py: the same training by four loops, in turns.

Each contender gets a model of its own, made from the same seed, the same text in the same order, fused AdamW,
clipping at 1, a constant rate, and a line of log every ten steps. What is timed is the same for all: from the
end of optimizer step ``WARM`` to the end of the last, seen by a hook that torch calls after every step of any
optimizer. Starting up and closing down are not in it.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.train_loop_peers import (
    LOG_EVERY,
    RATE,
    accelerate_loop,
    fresh_model,
    lightning_trainer,
    transformers_trainer,
)
from workshop import report
from workshop.facts.layout import Layout
from workshop.models.text import TextBatches
from workshop.train import Settings, train_loop
from workshop.train.apply_layout import apply_layout
from workshop.train.group import join_group
from workshop.train.log import open_log

WARM = 4


class Clock:
    """Seconds between the end of step WARM and the end of the last step of a block."""

    def __init__(self, device: torch.device, steps: int) -> None:
        self.device, self.steps, self.taken = device, steps, 0
        self.began = self.ended = (0.0, 0.0)
        register_optimizer_step_post_hook(self.step_ended)

    def step_ended(self, *_: Any) -> None:
        """A step is queued; the two that count are waited for."""
        self.taken += 1
        if self.taken == WARM:
            self.began = self.now()
        if self.taken == self.steps:
            self.ended = self.now()

    def now(self) -> tuple[float, float]:
        """The time, and this process's CPU seconds, when the device has caught up."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter(), time.process_time()

    def block(self, run: Callable[[], float]) -> tuple[float, float, float]:
        """Seconds and CPU seconds a step, and the loss that the block ended with."""
        self.taken = 0
        dist.barrier()
        loss = run()
        if self.taken != self.steps:
            raise RuntimeError(f"{self.taken} optimizer steps were taken, {self.steps} were asked for")
        wall, cpu = (end - begin for begin, end in zip(self.began, self.ended, strict=True))
        return wall / (self.steps - WARM), cpu / (self.steps - WARM), loss


def ours(job: argparse.Namespace, device: torch.device, folder: Path) -> Callable[[], float]:
    """`workshop.train.train_loop`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    settings = Settings(
        num_steps=job.steps,
        learning_rate=RATE,
        log_every=LOG_EVERY,
        compile="inductor" if job.compile else "",
    )
    batches = TextBatches(job.seq_len, job.global_batch, rank, ranks)
    precision = "amp-bf16" if job.bf16 else "fp32"

    def block() -> float:
        ready = apply_layout(fresh_model(job, device), Layout(replicate=ranks, precision=precision), settings)
        log = open_log("jsonl" if rank == 0 else "none", folder)
        return train_loop(ready, batches, settings, log=log).last

    return block


CONTENDERS = {
    "workshop": ours,
    "accelerate": accelerate_loop,
    "transformers.Trainer": transformers_trainer,
    "lightning": lightning_trainer,
}


def main() -> None:
    """Every contender once to warm up, then rounds in which each has a turn, in changing order."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="fields of a ModelSpec, as JSON")
    for name in ("seq-len", "micro-batch", "steps", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--compile", action="store_true")
    job = parser.parse_args()
    warnings.filterwarnings("ignore")
    device = join_group()
    job.global_batch = job.micro_batch * dist.get_world_size()
    clock = Clock(device, job.steps)
    folder = Path(tempfile.mkdtemp())
    blocks = {name: make(job, device, folder) for name, make in CONTENDERS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in blocks}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in blocks}
    losses: dict[str, float] = {}
    names = list(blocks)
    for turn in range(job.rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            wall, cpu, losses[name] = clock.block(blocks[name])
            gc.collect()
            if turn:  # the first warms up: imports, compilers, allocators
                seconds[name].append(wall)
                cpu_seconds[name].append(cpu)
    report(seconds=seconds, cpu_seconds=cpu_seconds, losses=losses, device=str(device))


if __name__ == "__main__":
    main()
    gc.collect()
    dist.destroy_process_group()
