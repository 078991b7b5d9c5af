"""FSDP by hand and by torch, with every choice, on a tiny tied GPT beside one process."""

import gc

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from workshop import report
from workshop.measure import measure
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.fsdp import shard_by_hand, shard_model

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
CONFIG = GPTConfig(
    vocab_size=64, hidden_size=16, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=36, tied=True
)
STEPS = 8
LONG = ("by hand", "layers", "root", "keep", "hybrid", "bf16", "by hand, bf16")  # the others differ less


def batch_of(step):
    return torch.randint(64, (8, 8), generator=torch.Generator().manual_seed(step))


def train(model, mine=lambda tokens: tokens.chunk(world_size)[rank], steps=STEPS):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        tokens = mine(batch_of(step))
        loss = model(tokens, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().float())
    return torch.stack(losses)


def build(seed, recompute=False):
    torch.manual_seed(seed)
    model = GPT(CONFIG)
    model.model.recompute = recompute
    return model


def on_meta():
    """Rank 0 draws; a fixed number for each weight shows that all ranks took it."""
    with torch.device("meta"):
        model = GPT(CONFIG)

    def initialise(module):
        for parameter in module.parameters(recurse=False):
            parameter.fill_(1.0 + rank)

    shard_model(model, initialise=initialise)
    embedding = model.model.embed_tokens.weight
    tied = model.lm_head.weight is embedding
    embedding = embedding.detach()
    return tied, float(embedding.full_tensor().min()), float(embedding.full_tensor().max())


def told(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


reference = train(build(0), mine=lambda tokens: tokens)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
runs = {
    "by hand": lambda: shard_by_hand(build(rank)),
    "by hand, recompute": lambda: shard_by_hand(build(rank, recompute=True)),
    "by hand, every linear": lambda: shard_by_hand(build(rank), wrap="every-linear"),
    "by hand, bf16": lambda: shard_by_hand(build(rank), dtype=torch.bfloat16),
    "layers": lambda: shard_model(build(rank)),
    "root": lambda: shard_model(build(rank), wrap="root"),
    "every linear": lambda: shard_model(build(rank), wrap="every-linear"),
    "a function": lambda: shard_model(build(rank), wrap=lambda m: type(m).__name__ in ("MLP", "Attention")),
    "keep": lambda: shard_model(build(rank), reshard=False),
    "pairs": lambda: shard_model(build(rank), reshard=2),
    "offload": lambda: shard_model(build(rank), offload=True),
    "prefetch": lambda: shard_model(build(rank), prefetch=2),
    "hybrid": lambda: shard_model(build(rank), mesh),
    "recompute": lambda: shard_model(
        build(rank, recompute=True)
    ),  # compiled too: tests/train/test_every_way.py
    "bf16": lambda: shard_model(build(rank), precision="fsdp-bf16"),
}
differences, calls = {}, {}
for name, make in runs.items():
    with measure(memory=False) as measured:
        losses = train(make(), steps=STEPS if name in LONG else 4)
    calls[name] = {row.name: (row.count, row.payload_bytes) for row in measured.traffic}
    dist.all_reduce(losses)
    differences[name] = float((losses / world_size - reference[: len(losses)]).abs().max())
    gc.collect()

report(
    differences=differences,
    traffic=calls,
    on_meta=on_meta(),
    told=[
        told(lambda: shard_model(build(0), prefetc=1)),
        told(lambda: shard_model(build(0), precision="fp8")),
        told(lambda: shard_model(build(0), precision="bf16")),
        told(lambda: shard_model(build(0), wrap="layer")),
        told(lambda: shard_model(build(0), prefetch=-1)),
    ],
)
gc.collect()
dist.destroy_process_group()
