"""A rank of `bubble.py`: real compute, every schedule that is run by hand, in turns; what was done when."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from workshop import report
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.pipeline import open_wire, run_schedule
from workshop.parallel.stages import cut_stages, split_evenly

CHUNKS = {"naive": 1, "gpipe": 1, "1f1b": 1, "interleaved": 2, "breadth-first": 2}
TRIES, MICRO_BATCHES, LENGTH = 6, 4, 64

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
config = GPTConfig(
    vocab_size=64, hidden_size=640, num_layers=16, num_heads=8, num_kv_heads=4, intermediate_size=1728
)
whole = GPT(config)
stages = {
    1: cut_stages(whole, split_evenly(16, 2), [rank]),
    2: cut_stages(whole, split_evenly(16, 4), [rank, rank + 2]),
}
tokens = torch.randint(config.vocab_size, (MICRO_BATCHES, 1, LENGTH)).unbind()
wire = open_wire((1, LENGTH, config.hidden_size))


def loss_of(logits, targets):
    """Of one micro-batch."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


tries = {schedule: [] for schedule in CHUNKS}
for _ in range(TRIES):
    for schedule, steps in tries.items():
        dist.barrier()
        step = run_schedule(schedule, stages[CHUNKS[schedule]], (tokens, tokens), loss_of, wire)
        steps.append({"began": step.began, "events": step.events})
report(tries=tries)
dist.destroy_process_group()
