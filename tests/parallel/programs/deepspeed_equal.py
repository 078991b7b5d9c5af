"""DeepSpeed's stages, with and without offload, beside one process."""

import torch
import torch.distributed as dist
from torch import nn

from workshop import report
from workshop.facts.layout import Layout
from workshop.measure import measure
from workshop.parallel.deepspeed_zero import FREE_AT_ONCE, deepspeed_engine

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
WIDTH, STEPS = 32, 20


def stack():
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(3)])


def seeded():
    torch.manual_seed(rank)
    return stack()


def batch_of(step, dtype=torch.float32):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step)).to(dtype)


def loss_of(model, batch):
    return (model(batch) - batch.roll(1, -1)).float().square().mean()


def alone(born=torch.float32):
    """born: the type that the weights are drawn in. The same seed gives bf16 other numbers than fp32 (torch 2.11)."""
    torch.manual_seed(0)
    torch.set_default_dtype(born)
    model = stack().float()
    torch.set_default_dtype(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        loss = loss_of(model, batch_of(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def train(zero, *, model=stack, settings=FREE_AT_ONCE, **layout):
    axis = {"shard": world_size} if zero else {"replicate": world_size}
    torch.manual_seed(rank)
    how = Layout(zero=zero, **{"precision": "fp32", **axis, **layout})
    engine = deepspeed_engine(model, how, learning_rate=1e-3, micro_batch=2, settings=settings)
    dtype = torch.float32 if how.precision == "fp32" else torch.bfloat16
    losses = []
    with measure(memory=False) as measured:
        for step in range(STEPS):
            loss = loss_of(engine, batch_of(step, dtype).chunk(world_size)[rank])
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
    losses = torch.stack(losses)
    dist.all_reduce(losses)
    engine.destroy()
    return losses / world_size, sum(row.wire_bytes for row in measured.traffic)


def told(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


reference, reference_bf16 = alone(), alone(torch.bfloat16)
weights = 4 * sum(p.numel() for p in stack().parameters())
ring = (world_size - 1) / world_size * weights
found = {}
runs = {f"stage {stage}": {"zero": stage} for stage in range(4)}
runs |= {
    "stage 2, offload": {"zero": 2, "offload": "optimizer"},
    "stage 3, offload": {"zero": 3, "offload": "params"},
    "stage 3, as it comes": {"zero": 3, "settings": None},
    "stage 3, a module": {"zero": 3, "model": seeded()},
    "stage 3, bf16": {"zero": 3, "precision": "deepspeed-bf16"},
}
for name, how in runs.items():
    losses, sent = train(**how)
    right = reference_bf16 if "bf16" in name else reference
    found[name] = (float((losses - right).abs().max()), sent / ring)
report(
    found=found,
    told=[
        told(lambda: deepspeed_engine(stack, Layout(shard=8, zero=2, precision="fp32"))),
        told(lambda: deepspeed_engine(stack, Layout(shard=2, zero=2, precision="fp32"), optimizer="adamv")),
        told(lambda: train(1, offload="params")),
    ],
)
