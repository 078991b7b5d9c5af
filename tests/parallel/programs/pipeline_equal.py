"""Every schedule run by hand beside one process: losses, every gradient, the order, what was kept."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from workshop import report
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.pipeline import open_wire, run_order, run_schedule
from workshop.parallel.stages import add_tied_gradients, cut_stages, split_evenly
from workshop.predict.pipeline import pipeline_orders

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
MICRO, BATCH, LENGTH = 2 * ranks, 2, 8


def shape(tied):
    return GPTConfig(64, 32, 2 * ranks, 4, 2, 48, tied=tied)


def build(tied):
    torch.manual_seed(20 + rank)
    model = GPT(shape(tied))
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    return model


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


torch.manual_seed(3)
inputs, targets = (torch.randint(64, (MICRO, BATCH, LENGTH)).unbind() for _ in range(2))
ends = dist.new_group(sorted({0, ranks - 1}))


def compare(schedule, chunks, tied):
    plain = build(tied)
    wanted = [loss_of(plain(x), y) for x, y in zip(inputs, targets, strict=True)]
    torch.stack(wanted).mean().backward()
    num_stages = ranks * chunks
    copy = GPT(plain.config)
    copy.load_state_dict(plain.state_dict())
    stages = cut_stages(copy, split_evenly(2 * ranks, num_stages), range(rank, num_stages, ranks))
    wire = open_wire((BATCH, LENGTH, 32))
    step = run_schedule(schedule, stages, (inputs, targets), loss_of, wire)
    if tied and rank in (0, ranks - 1):
        add_tied_gradients(stages, ends)
    right = dict(plain.named_parameters(remove_duplicate=False))
    errors = {
        name: ((parameter.grad - right[name].grad).norm() / right[name].grad.norm()).item()
        for stage in stages.values()
        for name, parameter in stage.named_parameters()
    }
    losses = (
        max((abs(a - b).item() for a, b in zip(step.losses, wanted, strict=True)), default=0.0)
        if step.losses
        else 0.0
    )
    order = [str(event.action) for event in step.events]
    return {
        "errors": errors,
        "losses": losses,
        "order": order,
        "began": step.began,
        "events": step.events,
        "most_kept": step.most_kept,
        "count": len(step.losses),
    }


cases = [("naive", 1, False), ("gpipe", 1, False), ("1f1b", 1, False), ("1f1b", 1, True)]
cases += [("interleaved", 2, False), ("breadth-first", 2, True)]
for schedule, chunks, tied in cases:
    report(**{f"{schedule} {chunks} tied={tied}": compare(schedule, chunks, tied)})

try:
    order = pipeline_orders("zb-h1", ranks, MICRO)[rank]
    run_order(order, {}, ranks, (inputs, targets), loss_of, open_wire((1,)))
except ValueError as error:
    report(said=str(error))
try:
    run_schedule("zbv", {}, (inputs, targets), loss_of, open_wire((1,)))
except ValueError as error:
    report(name=str(error))
dist.destroy_process_group()
