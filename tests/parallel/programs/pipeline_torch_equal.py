"""Torch's schedules beside one process: losses and every gradient."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from workshop import report
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.pipeline_torch import ONE_STAGE, SCHEDULES, TorchPipeline, stages_of
from workshop.parallel.stages import cut_stages, split_evenly

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
MICRO, BATCH, LENGTH = 2 * ranks, 2, 8


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


torch.manual_seed(20 + rank)
plain = GPT(GPTConfig(64, 32, 2 * ranks, 4, 2, 48))
for parameter in plain.parameters():
    dist.broadcast(parameter.data, 0)
torch.manual_seed(3)
inputs, targets = (torch.randint(64, (MICRO, BATCH, LENGTH)).unbind() for _ in range(2))
wanted = [loss_of(plain(x), y) for x, y in zip(inputs, targets, strict=True)]
torch.stack(wanted).mean().backward()
right = dict(plain.named_parameters())


def compare(schedule):
    copy = GPT(plain.config)
    copy.load_state_dict(plain.state_dict())
    mine = stages_of(schedule, rank, ranks)
    num_stages = ranks * len(mine)
    stages = cut_stages(copy, split_evenly(2 * ranks, num_stages), mine)
    pipeline = TorchPipeline(schedule, stages, num_stages, MICRO, loss_of)
    losses = pipeline.step(inputs, targets)
    errors = {
        name: ((parameter.grad - right[name].grad).norm() / right[name].grad.norm()).item()
        for stage in stages.values()
        for name, parameter in stage.named_parameters()
    }
    far = [abs(a - b).item() for a, b in zip(losses, wanted, strict=bool(losses))]
    return {"errors": errors, "losses": max(far, default=0.0), "count": len(losses)}


for schedule in SCHEDULES:
    report(**{schedule: compare(schedule)})
    dist.barrier()


def complaint(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


report(
    name=complaint(lambda: stages_of("zigzag", 0, 2)),
    number=complaint(lambda: stages_of("zbv", 0, 2, 3)),
    place=complaint(lambda: TorchPipeline(ONE_STAGE[0], {rank + 1: plain}, ranks, MICRO, loss_of)),
)
dist.destroy_process_group()
