"""Train the same tiny model in every way given, on the ranks there are; report each way's losses.

Passed: WAYS, name -> (maker, layout, settings, accumulation, tied, layers). The ranks are seeded differently on purpose.
"""

import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from workshop import report
from workshop.models.gpt import GPT, GPTConfig
from workshop.models.text import TextBatches
from workshop.train import train_loop
from workshop.train.apply_layout import apply_layout
from workshop.train.group import join_group
from workshop.train.optimizers import build_optimizers
from workshop.train.ready import Ready

SHAPE = {
    "vocab_size": 256,
    "hidden_size": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 88,
}


def tiny(seed, tied, layers):
    torch.manual_seed(seed)
    return GPT(GPTConfig(**SHAPE, num_layers=layers, tied=tied))


def by_layout(model, layout, settings, micro_batch, accumulation):
    return apply_layout(model, layout, settings, micro_batch=micro_batch, accumulation=accumulation)


def adamw(model, settings):
    return build_optimizers("adamw", model, settings.learning_rate)


class AveragedByHand(torch.nn.Module):
    """The first version of DDP: nothing happens in backward; gradients are averaged before the step."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, targets):
        return self.model(tokens, targets)


class ReadyByHand(Ready):
    def clip(self, max_norm):
        from workshop.parallel.ddp import average_gradients

        average_gradients(self.model)
        super().clip(max_norm)


def average_by_hand(model, layout, settings, micro_batch, accumulation):
    from workshop.parallel.ddp import begin_together

    begin_together(model)
    return ReadyByHand(AveragedByHand(model), adamw(model, settings))


def buckets_by_hand(model, layout, settings, micro_batch, accumulation):
    from workshop.parallel.ddp import BucketedDDP

    wrapped = BucketedDDP(model, bucket_cap_mb=0.01)
    return Ready(wrapped, adamw(wrapped, settings), waits=True)


def fsdp_by_hand(model, layout, settings, micro_batch, accumulation):
    from workshop.parallel.fsdp import shard_by_hand

    sharded = shard_by_hand(model)
    return Ready(sharded, adamw(sharded, settings))


def by_accelerate(model, layout, settings, micro_batch, accumulation):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == dist.get_world_size()
    model, optimizer = accelerator.prepare(model, *adamw(model, settings))
    assert isinstance(model, DistributedDataParallel)
    return Ready(model, [optimizer], waits=True)


def main():
    rank = dist.get_rank()
    for name, (maker, layout, settings, accumulation, tied, layers) in WAYS.items():  # noqa: F821
        batches = TextBatches(32, 8, layout.data_rank(rank), layout.data_parallel, accumulation)
        model = tiny(seed=rank, tied=tied, layers=layers)
        ready = globals()[maker](model, layout, settings, batches.micro_batch, accumulation)
        losses = train_loop(ready, batches, settings)
        report(**{name: losses.values, f"{name} norm": float(ready.gradient_norm or 0.0)})
        del ready, model
        gc.collect()


if __name__ == "__main__":
    join_group()
    main()
    gc.collect()
    dist.destroy_process_group()
