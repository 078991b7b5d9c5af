"""A GPT on real text, on any number of ranks, cut any way; it goes on where it was stopped.

  torchrun --standalone --nproc-per-node 2 train_gpt.py --zero 3 --folder out --save-every 2
  torchrun --standalone --nproc-per-node 2 --max-restarts 1 train_gpt.py --folder o --save-every 2 --die-at 5

Unlike the other examples it uses this package: the loop, the layout, the checkpoints. Run it again with the
same folder and it goes on after the last checkpoint; on another number of ranks too.
"""

import argparse
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from workshop import report
from workshop.facts.catalogue import model as known_model
from workshop.facts.layout import Layout
from workshop.models.from_spec import gpt_config
from workshop.models.gpt import GPT
from workshop.models.text import TextBatches
from workshop.train import Checkpoints, Settings, train_loop
from workshop.train.apply_layout import apply_layout
from workshop.train.group import join_group
from workshop.train.log import open_log


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="gpt-1m", help="a name of the catalogue, or 'tiny'")
    parser.add_argument("--zero", type=int, default=0, help="what the ranks share: 0 nothing ... 3 all")
    parser.add_argument("--engine", default="auto", help="plain, ddp, zero (by hand), deepspeed or fsdp")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="where checkpoints and the log go; none without it")
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--log", default="jsonl")
    parser.add_argument("--die-at", type=int, help="the last rank is killed in this step, the first time")
    return parser.parse_args()


def build(name: str) -> GPT:
    """A catalogue model; ``tiny`` is a gpt-1m with a hundredth of its parameters."""
    spec = known_model("gpt-1m" if name == "tiny" else name)
    config = gpt_config(spec)
    if name == "tiny":
        config = type(config)(vocab_size=256, hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1,
                              intermediate_size=64, tied=True)  # fmt: skip
    return GPT(config)


class KilledInStep(TextBatches):
    """Data that kill their reader: after the forward and backward of other ranks have begun."""

    def step(
        self, step: int, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        if step == ARGS.die_at and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().step(step, device)


def main() -> None:
    join_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # ranks begin differently on purpose: apply_layout makes them alike
    shape = {"shard": ranks} if ARGS.zero else {"replicate": ranks}
    settings = Settings(
        num_steps=ARGS.steps, schedule="cosine", warmup=2, engine=ARGS.engine, save_every=ARGS.save_every,
        log_every=1, log=ARGS.log if ARGS.folder and rank == 0 else "none",
    )  # fmt: skip
    kind = KilledInStep if ARGS.die_at is not None and rank == ranks - 1 else TextBatches
    batches = kind(ARGS.seq_len, ARGS.global_batch, rank, ranks, ARGS.accumulation)
    ready = apply_layout(
        build(ARGS.model), Layout(**shape, zero=ARGS.zero, precision=ARGS.precision), settings,
        micro_batch=batches.micro_batch,
    )  # fmt: skip
    log = open_log(settings.log, ARGS.folder or ".")
    losses = train_loop(
        ready, batches, settings, log=log, checkpoints=Checkpoints(ARGS.folder) if ARGS.folder else None
    )
    log.close()
    for step, loss in enumerate(losses.values, losses.first_step):
        print(f"step {step} loss {loss:.6f}")
    report(first_step=losses.first_step, losses=losses.values)


if __name__ == "__main__":
    ARGS = arguments()
    main()
    gc.collect()  # what holds the group goes first; else a rank can hang here (gloo)
    dist.destroy_process_group()
