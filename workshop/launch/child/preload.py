"""What the engine imports once, so that no rank pays for it: torch, its collectives, ipykernel.

`torch._dynamo` is on the list because the first optimizer step or DDP of a process imports it
(a second or more), though nothing is compiled.
"""

from __future__ import annotations

import asyncio  # noqa: F401

import torch
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.nn.parallel
import torch.optim  # noqa: F401

import workshop.launch.child.rank_kernel
import workshop.launch.child.rank_script  # noqa: F401
from workshop.launch.child.extension_builds import watch_builds
from workshop.launch.child.text_bars import text_bars

text_bars()
watch_builds()
