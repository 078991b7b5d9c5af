"""One script, every engine: what decides is the configuration that it is started with.

    python accelerate_any.py                                            one process
    accelerate launch --config_file FILE accelerate_any.py              DDP, FSDP2 or DeepSpeed, as FILE says
    python -m torch.distributed.run --nproc-per-node 2 accelerate_any.py --config FILE   the same

FILE is what `workshop configs accelerate RUN.toml` writes. With --config the script sets the variables itself
that `accelerate launch` would have set from the file. Global batch, data and first weights do not depend on
the engine, so neither do the losses.
"""

import argparse
import gc
import json
import os
import warnings

import torch
import yaml
from torch.utils.data import DataLoader, TensorDataset

from workshop.configs import accelerate_environment
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.accelerate_on_cpu import ranks_like_gpus

CONFIG = GPTConfig(
    vocab_size=256, hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=128
)
GLOBAL_BATCH, SEQ_LEN = 16, 32


def main() -> None:
    options = parse()
    if options.config:
        with open(options.config, encoding="utf-8") as file:
            os.environ.update(accelerate_environment(yaml.safe_load(file)))
    ranks_like_gpus()  # does nothing where there are GPUs
    from accelerate import Accelerator

    steps_of_batch = {} if os.environ.get("ACCELERATE_USE_DEEPSPEED") else {
        "gradient_accumulation_steps": options.accumulation
    }  # fmt: skip
    accelerator = Accelerator(**steps_of_batch)
    assert accelerator.num_processes == int(os.environ.get("WORLD_SIZE", 1)), (
        "ranks that do not know each other"
    )
    losses = train(accelerator, options)
    if accelerator.is_main_process:
        print(json.dumps({
            "engine": accelerator.distributed_type.name,
            "num_processes": accelerator.num_processes,
            "mixed_precision": accelerator.state.mixed_precision,
            "accumulation": accelerator.gradient_accumulation_steps,
            "losses": losses,
        }), flush=True)  # fmt: skip
    del accelerator
    gc.collect()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", help="an Accelerate YAML, where torchrun starts this script")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument(
        "--accumulation", type=int, default=1, help="micro-batches of a step (not for DeepSpeed)"
    )
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def train(accelerator, options) -> list[float]:
    """The loop that Accelerate's users write; it names no engine."""
    torch.manual_seed(0)  # the same first weights on every rank
    model = GPT(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    generator = torch.Generator().manual_seed(1)
    steps = accelerator.gradient_accumulation_steps
    tokens = torch.randint(0, 256, (options.steps * GLOBAL_BATCH, SEQ_LEN + 1), generator=generator)
    micro_batch = GLOBAL_BATCH // (accelerator.num_processes * steps)
    loader = DataLoader(TensorDataset(tokens), batch_size=micro_batch)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    losses, micro_losses = [], []
    for (batch,) in loader:
        with accelerator.accumulate(model):
            loss = model(batch[:, :-1], batch[:, 1:])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        micro_losses.append(accelerator.gather(loss.detach().float().reshape(1)).mean())
        if len(micro_losses) == steps:
            losses.append(torch.stack(micro_losses).mean().item())
            micro_losses = []
    return losses


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning)
    main()
