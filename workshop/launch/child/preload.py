"""What the engine imports once, so that no rank pays for it: torch, its collectives, ipykernel.

`torch._dynamo` is on the list because the first optimizer step or DDP of a process imports it
(a second or more), though nothing is compiled.
"""

from __future__ import annotations

import asyncio  # noqa: F401
import sys
import types

import torch
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.nn.parallel
import torch.optim  # noqa: F401
from tqdm import std

import workshop.launch.child.rank_kernel
import workshop.launch.child.rank_script  # noqa: F401
from workshop.launch.child.extension_builds import watch_builds


def text_bars() -> None:
    """From now on every tqdm of this process, and of what is forked from it, draws text.

    A widget would live in the notebook's page, out of a rank's reach. `tqdm.auto`, which transformers and
    others use, takes widgets wherever ipykernel is loaded, and a rank has it loaded. So `tqdm.autonotebook`
    and `tqdm.notebook` are tqdm's text bars here.
    """
    for name in ("tqdm.autonotebook", "tqdm.notebook"):
        module = types.ModuleType(name, text_bars.__doc__)
        module.__dict__.update(
            tqdm=std.tqdm, trange=std.trange, tqdm_notebook=std.tqdm, tnrange=std.trange, IProgress=None
        )
        sys.modules[name] = module


text_bars()
watch_builds()
