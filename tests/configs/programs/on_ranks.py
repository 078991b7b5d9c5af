"""What Accelerate and DeepSpeed make of files on real gloo ranks; each rank writes what it found.

    torchrun --nproc-per-node 2 on_ranks.py FOLDER      reads FOLDER/cases.json, writes FOLDER/found_RANK.json

A case has ``kind`` and ``config``:

bare     who `Accelerator()` thinks it is, without any help (these come first: later cases have a process group)
train    the loop of examples/any_engine/accelerate_any.py under an Accelerate YAML: its losses
yaml     prepared under an Accelerate YAML, and a step; ``with`` asks for more
json     `deepspeed.initialize` and some steps
import   a ``line`` that imports something

The variables are set as the launcher would set them (`tests/configs/test_launch_environment.py`).
"""

import gc
import importlib
import json
import logging
import os
import sys
import warnings
from argparse import Namespace
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from accelerate.utils import GradientAccumulationPlugin  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from examples.any_engine import accelerate_any  # noqa: E402
from workshop.configs import accelerate_environment  # noqa: E402
from workshop.models.gpt import GPT, GPTConfig  # noqa: E402
from workshop.parallel.accelerate_on_cpu import ranks_like_gpus  # noqa: E402

importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
CONFIG = GPTConfig(
    vocab_size=64, hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=64
)
VARIABLES = ("ACCELERATE_", "FSDP_", "PARALLELISM_")
STEPS, SEQ_LEN = 4, 16


def set_variables(config: dict) -> None:
    for name in [name for name in os.environ if name.startswith(VARIABLES)]:
        del os.environ[name]
    os.environ.update(accelerate_environment(config))


def bare(case: dict) -> dict:
    """Without GPUs and without help."""
    set_variables(case["config"])
    accelerator = Accelerator()
    found = {
        "engine": accelerator.distributed_type.name,
        "rank": accelerator.process_index,
        "ranks": accelerator.num_processes,
        "refused": "",
    }
    if case["config"]["distributed_type"] == "DEEPSPEED":
        found["refused"] = refused_by_prepare(accelerator)
    return found


def refused_by_prepare(accelerator: Accelerator) -> str:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    try:
        accelerator.prepare(model, optimizer, DataLoader(TensorDataset(torch.ones(4, 8)), batch_size=2))
    except AssertionError as error:
        return str(error)
    return ""


def train(case: dict) -> dict:
    """The same script under every engine."""
    set_variables(case["config"])
    ranks_like_gpus()
    steps = case.get("accumulation", 1)
    accelerator = Accelerator(**({} if steps == 1 else {"gradient_accumulation_steps": steps}))
    options = Namespace(steps=5, lr=1e-3)
    return {
        "losses": accelerate_any.train(accelerator, options),
        "engine": accelerator.distributed_type.name,
        "ranks": accelerator.num_processes,
        "accumulation": accelerator.gradient_accumulation_steps,
    }


def train_alone(_: dict) -> dict:
    """The same data and first weights in plain PyTorch: what every engine must come to."""
    torch.manual_seed(0)
    model = GPT(accelerate_any.CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    shape = (5 * accelerate_any.GLOBAL_BATCH, accelerate_any.SEQ_LEN + 1)
    tokens = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1))
    losses = []
    for batch in tokens.split(accelerate_any.GLOBAL_BATCH):
        loss = model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses}


def read_yaml(case: dict) -> dict:
    """Prepare, take one step, and look."""
    config, wanted = case["config"], case.get("with", {})
    set_variables(config)
    ranks_like_gpus()
    try:
        return prepared(wanted)
    except (ValueError, KeyError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}


def prepared(wanted: dict) -> dict:
    sync = wanted.get("sync")
    accelerator = Accelerator(
        gradient_accumulation_plugin=None
        if sync is None
        else GradientAccumulationPlugin(num_steps=4, sync_each_batch=sync)
    )
    model = GPT(CONFIG)
    if wanted.get("names_layers"):  # as models of transformers do
        model._no_split_modules = ["Layer"]
    if wanted.get("adapter"):
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"]))
    whole = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    tokens = torch.randint(0, 64, (8, 17), generator=torch.Generator().manual_seed(1))
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(TensorDataset(tokens), batch_size=2)
    )
    first: list = []
    for (batch,) in loader:
        first = first or batch.tolist()
        with accelerator.accumulate(model):
            accelerator.backward(model(batch[:, :-1], batch[:, 1:]))
            if sync is not None:
                return {"sharded_gradients": sum(p.grad is not None for p in model.parameters())}
            optimizer.step()
    found = look(accelerator, model) | {"whole": whole, "first": first}
    return found | saved(accelerator, model, wanted)


def look(accelerator: Accelerator, model: torch.nn.Module) -> dict:
    found = {
        "refused": "",
        "engine": accelerator.distributed_type.name,
        "ranks": accelerator.num_processes,
        "units": sum(isinstance(module, FSDPModule) for module in model.modules()),
        "ddp": isinstance(model, DistributedDataParallel),
        "held": sum(held(p) for p in model.parameters()),
    }
    if found["engine"] == "DEEPSPEED":
        found["clipping"] = float(model.gradient_clipping())
        found["stage"] = int(model.zero_optimization_stage())
    if accelerator.parallelism_config and accelerator.torch_device_mesh is not None:
        mesh = accelerator.torch_device_mesh
        found["mesh"] = dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True))
    return found


def held(parameter: torch.Tensor) -> int:
    """Elements of a parameter that this rank keeps, under FSDP2 and under ZeRO-3."""
    if hasattr(parameter, "ds_tensor"):
        return parameter.ds_tensor.numel()
    return (parameter.to_local() if type(parameter).__name__ == "DTensor" else parameter).numel()


def saved(accelerator: Accelerator, model: torch.nn.Module, wanted: dict) -> dict:
    if wanted.get("adapter"):
        from peft import get_peft_model_state_dict

        state = accelerator.get_state_dict(model)
        return {
            "adapter_tensors": len(get_peft_model_state_dict(model, state_dict=state)),
            "lora_tensors": sum("lora_" in name for name in state),
        }
    if not wanted.get("state_dict"):
        return {}
    try:
        return {"state_dict": len(accelerator.get_state_dict(model) or {})}
    except ValueError as error:
        return {"state_dict": str(error).split(" because")[0]}


def read_json(case: dict) -> dict:
    """DeepSpeed itself."""
    deepspeed.init_distributed("gloo", verbose=False)
    torch.manual_seed(0)
    config, model = case["config"], GPT(CONFIG)
    optimizer = None if "optimizer" in config else torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), optimizer=optimizer, config=config
    )
    offload = engine.zero_offload_optimizer()
    found = {
        "stage": int(engine.zero_optimization_stage()),
        "offload": bool(offload) and offload.device != "none",
        "width": str(next(engine.module.parameters()).dtype).removeprefix("torch."),
        "clipping": float(engine.gradient_clipping()),
        "batch": engine.train_batch_size(),
        "losses": losses_of(engine),
    }
    engine.destroy()
    return found


def losses_of(engine) -> list[float]:
    micro, steps = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # rank r takes its part of one batch, the same in every step: the loss must fall
    shape = (steps, ranks, micro, SEQ_LEN + 1)
    tokens = torch.randint(0, 64, shape, generator=torch.Generator().manual_seed(1))
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
    return losses


def try_import(case: dict) -> dict:
    """Whether something is there to be imported."""
    try:
        exec(case["line"], {})
    except ImportError as error:
        return {"refused": str(error)}
    return {"refused": ""}


KINDS = {
    "bare": bare,
    "alone": train_alone,
    "train": train,
    "yaml": read_yaml,
    "json": read_json,
    "import": try_import,
}


def main() -> None:
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    found = {}
    cases = json.loads((folder / "cases.json").read_text())
    for name, case in sorted(cases.items(), key=lambda item: list(KINDS).index(item[1]["kind"])):
        found[name] = KINDS[case["kind"]](case)
        GradientState._reset_state()
        AcceleratorState._reset_state(reset_partial_state=True)
        gc.collect()
    (folder / f"found_{rank}.json").write_text(json.dumps(found))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


main()
