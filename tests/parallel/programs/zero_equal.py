"""ZeRO by hand, all stages, on a tiny GPT: losses beside one process; bytes held and sent; what it says."""

import gc

import torch
import torch.distributed as dist

from workshop import report
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.zero import zero

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
CONFIG = GPTConfig(
    vocab_size=64, hidden_size=16, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=36, tied=True
)
STEPS = 8


def batch_of(step):
    return torch.randint(64, (8, 8), generator=torch.Generator().manual_seed(step))


def alone():
    torch.manual_seed(0)
    model = GPT(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    losses = []
    for step in range(STEPS):
        loss = model(batch_of(step), batch_of(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    return torch.stack(losses), [p.detach().clone() for p in model.parameters()]


def train(stage, *, recompute=False, micro=1, dtype=torch.float32):
    torch.manual_seed(rank)
    model = GPT(CONFIG).to(dtype)
    model.model.recompute = recompute
    optimizer = zero(model, stage, lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    losses = []
    for step in range(STEPS):
        total = 0.0
        for tokens in batch_of(step).chunk(world_size)[rank].chunk(micro):
            loss = model(tokens, tokens) / micro
            loss.backward()
            total = total + loss.detach().float()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(total)
    losses = torch.stack(losses)
    dist.all_reduce(losses)
    with optimizer.gathered():
        weights = [p.detach().clone() for p in model.parameters()]
    return losses / world_size, weights


def told(call):
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


losses, weights = alone()
differences = {}
runs = {f"stage {stage}": {"stage": stage} for stage in range(4)}
runs |= {
    "stage 3, recompute": {"stage": 3, "recompute": True},
    "stage 2, micro-batches": {"stage": 2, "micro": 2},
    "stage 3, micro-batches": {"stage": 3, "micro": 2},
}
for name, how in runs.items():
    found, whole = train(**how)
    gap = max(float((a - b).abs().max()) for a, b in zip(whole, weights, strict=True))
    differences[name] = (float((found - losses).abs().max()), gap)
half = {stage: train(stage, dtype=torch.bfloat16)[0] for stage in (0, 3)}
report(
    differences=differences,
    bf16=float((half[0] - half[3]).abs().max()),
    bf16_noise=float((half[0] - losses).abs().max()),
)


def twice():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = zero(model, 1)
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()


report(
    told=[
        told(twice),
        told(lambda: zero(torch.nn.Linear(2, 2), 4)),
        told(lambda: zero(torch.nn.Linear(2, 2), 3)),
    ]
)
gc.collect()
dist.destroy_process_group()
