"""What a rank holds and sends under each stage by hand, on a stack born on the meta device."""

import gc

import torch
import torch.distributed as dist
from torch import nn

from workshop import report
from workshop.measure import count_from_here, held_bytes, measure
from workshop.parallel.zero import zero

dist.init_process_group("gloo")
WIDTH, DEPTH = 64, 4


def run(stage):
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)])
    optimizer = zero(model, stage, fused=True)
    with measure(memory=False) as measured:
        for _ in range(2):
            model(torch.ones(1, WIDTH)).square().mean().backward()
            dist.barrier()  # gloo's threads let go of their copies a moment late
            held = held_bytes()
            optimizer.step()
            optimizer.zero_grad()
    return {"held": held, "sent": {row.name: row.wire_bytes for row in measured.traffic}}


found = {}
for stage in range(4):
    count_from_here()
    found[stage] = run(stage)
    gc.collect()
    found[stage]["left"] = held_bytes()
report(found=found)
gc.collect()
dist.destroy_process_group()
