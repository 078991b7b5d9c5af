"""The same four stages by the library that ZeRO comes from: DeepSpeed, on GPUs or on gloo.

    engine = deepspeed_engine(model, Layout(shard=4, zero=2, precision="fp32"), learning_rate=1e-3)
    engine.backward(loss_of(engine));  engine.step()

The mathematics is that of `workshop.parallel.zero`, and a test holds the losses equal. The bytes differ in
places, all of them measured in lesson 24:

* stages 1 and 2 keep an fp32 master copy of a rank's part even where the weights are fp32: 12 bytes of
  optimizer state a parameter, not 8;
* they send gradients by all_reduce in buckets, of which a rank keeps its part (``use_multi_rank_bucket_
  allreduce``, the default): 3 times the parameters' bytes a step, not 2;
* stage 3 keeps gathered what will soon be used again (``stage3_max_live_parameters``, a billion of them), so
  a small model is gathered once a step and never freed: 2 times, and no room is saved.

The last is right for a model of billions and wrong for a lesson's, so `FREE_AT_ONCE` has the settings under
which stage 3 does what the paper says. On a machine without a GPU DeepSpeed's device is the CPU; then
``offload`` moves bytes from the CPU's memory to the CPU's memory: it works, and saves nothing.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import nn

from workshop.configs import deepspeed_config
from workshop.facts.checks import check_choice
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
}

BUCKET = 12_500_000
"""Values in a bucket of gradients or weights; the size DDP uses, twice over."""

FREE_AT_ONCE = {
    "zero_optimization": {
        "reduce_bucket_size": 500_000,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
        "stage3_param_persistence_threshold": 0,
        "stage3_prefetch_bucket_size": 0,
        "overlap_comm": False,
    }
}
"""With these stage 3 gathers each module before it computes and frees it after, forward and backward."""


def skip_shared_memory_kernel() -> None:
    """DeepSpeed's shared-memory all_reduce serves inference, and compiles for a minute at its first start."""
    # by its full name: as an attribute of deepspeed.comm, "torch" is torch itself
    vars(import_module("deepspeed.comm.torch"))["build_shm_op"] = lambda: None


def load_deepspeed() -> ModuleType:
    """DeepSpeed, imported, told its device, joined to the ranks' group, and quiet.

    Late and only in ranks: the import takes seconds and reads the environment once.

    Raises:
        ImportError: It is not installed; says how to get it.
    """
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # torch 2.13 renamed two collectives; DeepSpeed still calls them by their old names, thousands of times.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    try:
        import deepspeed
    except ImportError as error:
        raise ImportError("DeepSpeed is not installed: pip install deepspeed") from error
    skip_shared_memory_kernel()
    deepspeed.init_distributed("nccl" if on_gpu else "gloo", auto_mpi_discovery=False, verbose=False)
    return deepspeed


def deepspeed_engine(
    model: nn.Module | Callable[[], nn.Module],
    layout: Layout,
    *,
    optimizer: str | torch.optim.Optimizer = "adamw",
    learning_rate: float = 1e-3,
    micro_batch: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """A DeepSpeedEngine for a layout: ``engine(batch)``, ``engine.backward(loss)``, ``engine.step()``.

    model: a module, or a function that makes one. Stage 3 calls the function under ``deepspeed.zero.Init``:
        each parameter is cut as it is made, and the model is never whole anywhere.
    layout: zero, shard, precision (fp32, deepspeed-bf16, deepspeed-fp16) and offload (none, optimizer,
        params) are read; see `workshop.configs.deepspeed_config`.
    optimizer: a name of `OPTIMIZERS`, or an optimizer of this model's parameters.
    settings: laid over the configuration, section by section: `FREE_AT_ONCE`, or what the JSON knows.

    Raises:
        ValueError: A layout that DeepSpeed has not, or for another number of ranks; an unknown optimizer.
    """
    if isinstance(optimizer, str):
        check_choice("optimizer", optimizer, OPTIMIZERS)
    deepspeed = load_deepspeed()
    config = engine_config(layout, micro_batch, settings or {})
    _check_ranks(layout)
    if not isinstance(model, nn.Module):
        with deepspeed.zero.Init(config_dict_or_path=config, enabled=layout.zero == 3):
            model = model()
    if isinstance(optimizer, str):
        fused: dict[str, Any] = {} if optimizer == "sgd" else {"fused": True}
        optimizer = OPTIMIZERS[optimizer](model.parameters(), lr=learning_rate, **fused)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def engine_config(layout: Layout, micro_batch: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as a dictionary: `workshop.configs.deepspeed_config`, what we add, then ``settings``.

    We add buckets of 50 MB in fp32 (DeepSpeed's 5e8 values are 2 GB of buffer, also for a small model), and
    that torch's own AdamW is as good as DeepSpeed's, which is compiled at first use.
    """
    any_model = ModelSpec("any", num_layers=1, hidden_size=64, num_heads=1, vocab_size=64)
    config = deepspeed_config(Run(any_model, "this-machine", layout, micro_batch))
    config["zero_optimization"] |= dict.fromkeys(("reduce_bucket_size", "allgather_bucket_size"), BUCKET)
    config |= {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    if not torch.cuda.is_available():
        for section in config["zero_optimization"].values():
            if isinstance(section, dict):
                section["pin_memory"] = False  # pages are pinned for a GPU to read
    for key, value in settings.items():
        if isinstance(value, Mapping) and isinstance(config.get(key), dict):
            config[key] = {**config[key], **value}
        else:
            config[key] = value
    return config


def _check_ranks(layout: Layout) -> None:
    ranks = torch.distributed.get_world_size()
    if layout.world_size != ranks:
        axis = "shard" if layout.zero else "replicate"
        raise ValueError(
            f"the layout is for {layout.world_size} ranks and there are {ranks}: Layout({axis}={ranks}, ...)"
        )
