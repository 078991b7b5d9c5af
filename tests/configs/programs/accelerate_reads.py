"""Prepares a model under each Accelerate YAML of a folder, on real ranks, and says what Accelerate made of it.

    torchrun --nproc-per-node 2 accelerate_reads.py FOLDER      prints one JSON object

The variables are set as the launcher would set them (`tests/configs/test_launch_environment.py`).
"""

import gc
import json
import logging
import os
import sys
import warnings
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import yaml  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from accelerate.utils import GradientAccumulationPlugin  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from workshop.configs import accelerate_environment  # noqa: E402
from workshop.models.gpt import GPT, GPTConfig  # noqa: E402
from workshop.parallel.accelerate_on_cpu import ranks_like_gpus  # noqa: E402

CONFIG = GPTConfig(
    vocab_size=64, hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=64
)
VARIABLES = ("ACCELERATE_", "FSDP_", "PARALLELISM_")


def look(config: dict) -> dict:
    """Prepare, take one step, and look."""
    for name in [name for name in os.environ if name.startswith(VARIABLES)]:
        del os.environ[name]
    os.environ.update(accelerate_environment(config))
    ranks_like_gpus()
    accelerator = Accelerator(
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps=4, sync_each_batch=config["with_sync"]
        )
        if "with_sync" in config
        else None
    )
    model = GPT(CONFIG)
    if config.get("with_adapter"):
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"]))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    tokens = torch.randint(0, 64, (8, 17), generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(tokens), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (batch,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch[:, :-1], batch[:, 1:]))
            if "with_sync" in config:
                return {"ranks": 2, "sharded_gradients": sum(p.grad is not None for p in model.parameters())}
            optimizer.step()
    found = {
        "engine": accelerator.distributed_type.name,
        "ranks": accelerator.num_processes,
        "accumulation": accelerator.gradient_accumulation_steps,
        "units": sum(isinstance(module, FSDPModule) for module in model.modules()),
        "offloaded": any(
            type(p).__name__ == "DTensor" and p.device.type == "cpu" for p in model.parameters()
        ),
    }
    if found["engine"] == "DEEPSPEED":
        found["clipping"] = float(model.gradient_clipping())
        found["stage"] = int(model.zero_optimization_stage())
        found["weights_offloaded"] = bool(model.zero_offload_param())
    if accelerator.parallelism_config and accelerator.torch_device_mesh is not None:
        found["mesh"] = dict(
            zip(
                accelerator.torch_device_mesh.mesh_dim_names,
                accelerator.torch_device_mesh.shape,
                strict=False,
            )
        )
    if config.get("with_adapter"):
        from peft import get_peft_model_state_dict

        state = accelerator.get_state_dict(model)
        found["adapter_tensors"] = len(get_peft_model_state_dict(model, state_dict=state))
        found["lora_tensors"] = sum("lora_" in name for name in state)
    elif config.get("with_state_dict"):
        try:
            state = accelerator.get_state_dict(model)
            found["state_dict"] = len(state or {})
        except ValueError as error:
            found["state_dict"] = str(error).split(" because")[0]
    return found


def main() -> None:
    found = {}
    for path in sorted(Path(sys.argv[1]).glob("*.yaml")):
        found[path.stem] = look(yaml.safe_load(path.read_text()))
        GradientState._reset_state()
        AcceleratorState._reset_state(reset_partial_state=True)
        gc.collect()
    if int(os.environ["RANK"]) == 0:
        print("FOUND " + json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
