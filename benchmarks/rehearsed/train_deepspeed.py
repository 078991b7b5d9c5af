"""The same training under DeepSpeed's ZeRO, stages 1 to 3, started by torchrun like any other program."""

from __future__ import annotations

import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from train import SIZES, build, loss_of, parse

from workshop.parallel.deepspeed_zero import skip_shared_memory_kernel


def main() -> None:
    """Some steps."""
    options = parse()
    skip_shared_memory_kernel()
    deepspeed.init_distributed("gloo")
    torch.manual_seed(1 + dist.get_rank())
    model = build(options)
    config = {
        "train_micro_batch_size_per_gpu": options.batch,
        "bf16": {"enabled": options.dtype == "bf16"},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": int(options.layout[-1]),
            "reduce_bucket_size": 500_000,
            "stage3_param_persistence_threshold": 0,
        },
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    vocab = SIZES[options.size]["vocab_size"]
    for _ in range(options.steps):
        tokens = torch.randint(0, vocab, (options.batch, options.length))
        engine.backward(loss_of(engine, tokens))
        engine.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
