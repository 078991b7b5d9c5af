"""What a rank holds and sends under each stage by hand, on a stack born on the meta device."""

import gc
import time

import torch
import torch.distributed as dist
from torch import nn

from workshop import report
from workshop.measure import count_from_here, held_bytes, measure
from workshop.parallel.zero import zero

dist.init_process_group("gloo")
WIDTH, DEPTH = 64, 4


def settled_bytes():
    """Bytes held once they have not become fewer for a while: gloo's threads let go of their copies late."""
    least, unchanged = held_bytes(), 0
    while unchanged < 30:
        time.sleep(0.01)
        now = held_bytes()
        unchanged = 0 if now < least else unchanged + 1
        least = min(least, now)
    return least


def run(stage):
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)])
    optimizer = zero(model, stage, fused=True)
    with measure(memory=False) as measured:
        for _ in range(2):
            model(torch.ones(1, WIDTH)).square().mean().backward()
            dist.barrier()
            held = settled_bytes()
            optimizer.step()
            optimizer.zero_grad()
    return {"held": held, "sent": {row.name: row.wire_bytes for row in measured.traffic}}


count_from_here()
dist.barrier()  # in torch 2.11 each lets the byte of the one before go and keeps one: so the first is counted, too
found = {}
for stage in range(4):
    count_from_here()
    found[stage] = run(stage)
    gc.collect()
    found[stage]["left"] = settled_bytes()
report(found=found)
gc.collect()
dist.destroy_process_group()
