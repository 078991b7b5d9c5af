"""Trains under each DeepSpeed JSON of a folder, on real ranks, and says what DeepSpeed made of it.

torchrun --nproc-per-node 2 deepspeed_reads.py FOLDER      prints one JSON object
"""

import gc
import importlib
import json
import logging
import os
import sys
import warnings
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from workshop.models.gpt import GPT, GPTConfig  # noqa: E402

importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
CONFIG = GPTConfig(
    vocab_size=64, hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=64
)
STEPS, SEQ_LEN = 4, 16


def train(path: Path) -> dict:
    torch.manual_seed(0)
    config = json.loads(path.read_text())
    model = GPT(CONFIG)
    optimizer = None if "optimizer" in config else torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), optimizer=optimizer, config=str(path)
    )
    width = next(engine.module.parameters()).dtype
    micro, steps = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # rank r takes its part of one batch, the same in every step: the loss must fall
    tokens = torch.randint(
        0, 64, (steps, ranks, micro, SEQ_LEN + 1), generator=torch.Generator().manual_seed(1)
    )
    losses = []
    for _ in range(STEPS):
        total = torch.zeros(())
        for batch in tokens[:, rank]:
            loss = engine(batch[:, :-1], batch[:, 1:])
            engine.backward(loss)
            engine.step()
            total += loss.detach().float() / steps
        dist.all_reduce(total)
        losses.append(total.item() / ranks)
    found = {
        "stage": int(engine.zero_optimization_stage()),
        "offload": bool(engine.zero_offload_optimizer()) and engine.zero_offload_optimizer().device != "none",
        "width": str(width).removeprefix("torch."),
        "clipping": float(engine.gradient_clipping()),
        "batch": engine.train_batch_size(),
        "losses": losses,
    }
    engine.destroy()
    return found


def main() -> None:
    deepspeed.init_distributed("gloo", verbose=False)
    found = {}
    for path in sorted(Path(sys.argv[1]).glob("*.json")):
        found[path.stem] = train(path)
        gc.collect()
    if dist.get_rank() == 0:
        print("FOUND " + json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
