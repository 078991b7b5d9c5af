"""Every way of data parallelism beside one process with the joined batch: 20 steps, ranks seeded differently."""

import gc

import torch
import torch.distributed as dist
import torch.nn.functional as F

from workshop import report
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.ddp import (
    BucketedDDP,
    average_gradients,
    begin_together,
    bucket_bytes,
    check_alike,
    difference_between_ranks,
    wrap_ddp,
)

STEPS, MICRO_BATCH, SEQ_LEN = 20, 2, 16
CONFIG = GPTConfig(
    vocab_size=64, hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=64
)

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()


def batch(step, place):
    generator = torch.Generator().manual_seed(1000 * step + place)
    return torch.randint(64, (MICRO_BATCH, SEQ_LEN + 1), generator=generator)


def loss_of(model, rows):
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def fresh_model():
    torch.manual_seed(100 + rank)  # each rank begins with a model of its own
    return GPT(CONFIG)


def adamw(model):
    # eps: Adam divides a gradient by its own size, so the last bits of a gradient near zero would make a step
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6, fused=True)


def train(model, after_backward=lambda: None, accumulation=1, steps=STEPS):
    """The mean losses over ranks of the last micro-batches, and the trained parameters end to end."""
    optimizer = adamw(model)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for micro in range(accumulation):
            quiet = micro < accumulation - 1 and hasattr(model, "no_sync")
            with model.no_sync() if quiet else torch.enable_grad():
                loss = loss_of(model, batch(step * accumulation + micro, rank)) / accumulation
                loss.backward()
        after_backward()
        optimizer.step()
        loss = loss.detach()
        dist.all_reduce(loss)
        losses.append(loss.item() * accumulation / ranks)
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()])


def single_process(accumulation=1):
    """One process (rank 0) that sees all ranks' batches joined; the others wait for its result."""
    model, losses = fresh_model(), []
    optimizer = adamw(model)
    for step in range(STEPS if rank == 0 else 0):
        optimizer.zero_grad()
        for micro in range(accumulation):
            rows = [batch(step * accumulation + micro, place) for place in range(ranks)]
            loss = loss_of(model, torch.cat(rows)) / accumulation
            loss.backward()
        losses.append(loss.item() * accumulation)
        optimizer.step()
    found = [losses, torch.cat([p.detach().flatten() for p in model.parameters()])]
    dist.broadcast_object_list(found)
    return found


def main():
    """Train in every way and report how far each is from the single process."""
    wanted, many = single_process(), single_process(accumulation=2)
    plain = fresh_model()
    report(seeded_apart=max(difference_between_ranks(plain).values()))
    begin_together(plain)
    ways = {
        "by hand": (train(plain, lambda: average_gradients(plain)), wanted),
        "buckets": (train(BucketedDDP(fresh_model(), bucket_cap_mb=0.01)), wanted),
        "DistributedDataParallel": (train(wrap_ddp(fresh_model(), bucket_cap_mb=0.01)), wanted),
        "buckets, no_sync": (train(BucketedDDP(fresh_model()), accumulation=2), many),
        "DistributedDataParallel, no_sync": (train(wrap_ddp(fresh_model()), accumulation=2), many),
    }
    differences = {
        name: (
            max(abs(a - b) for a, b in zip(found[0], right[0], strict=True)),
            float((found[1] - right[1]).abs().max()),
        )
        for name, (found, right) in ways.items()
    }
    apart = fresh_model()  # the broadcast is missing: gradients are averaged, the models never meet
    train(apart, lambda: average_gradients(apart), steps=2)
    try:
        check_alike(apart)
        said = ""
    except RuntimeError as error:
        said = str(error)
    check_alike(plain, 1e-6)
    ours, theirs = BucketedDDP(fresh_model(), bucket_cap_mb=0.01), wrap_ddp(fresh_model(), bucket_cap_mb=0.01)
    for model in (ours, theirs):
        for step in range(3):
            loss_of(model, batch(step, rank)).backward()
    report(
        differences=differences,
        said=said,
        buckets=[sum(p.nbytes for p in bucket) for bucket in ours.buckets],
        torch_buckets=bucket_bytes(theirs),
    )


main()
gc.collect()
dist.destroy_process_group()
