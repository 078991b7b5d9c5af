"""In ranks with GPUs: DeepSpeed as it is, but for the name of its device, and whom it asks for free memory.

DeepSpeed calls the device of a rank "cuda:LOCAL_RANK" (accelerator/cuda_accelerator.py: device_name), and
has no setting for it. Where ranks share a GPU there is only "cuda:0", and a model that is moved to "cuda:1"
ends in "invalid device ordinal". So the number is taken modulo the GPUs that there are.

At stages 1 and 2 it asks NVML how much memory is free, and finds the GPU by the numbers in
``CUDA_VISIBLE_DEVICES`` (`_get_nvml_gpu_id`). A lease has UUIDs there, which CUDA takes and `int` does not.
CUDA itself answers the same question, for the device by its own number.

DeepSpeed is imported by whoever needs it, and that takes seconds: the change waits for that import.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

MODULE = "deepspeed.accelerator.cuda_accelerator"


def know_the_leased_gpus() -> None:
    """Let this process's DeepSpeed, imported now or later, name a GPU that there is and know its UUID."""
    if MODULE in sys.modules:
        _change(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, _AtImport())


class _AtImport(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The real module's place, with a loader that changes it once it is there."""
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_change(module: ModuleType) -> None:
                execute(module)
                _change(module)

            loader.exec_module = execute_and_change
        return spec


def _change(module: ModuleType) -> None:
    accelerator: Any = module.CUDA_Accelerator
    named = accelerator.device_name

    def device_name(self: Any, device_index: Any = None) -> Any:
        if device_index is not None:
            device_index = int(device_index) % max(1, torch.cuda.device_count())
        return named(self, device_index)

    def available_memory(_: Any, device_index: int | None = None) -> int:
        return int(torch.cuda.mem_get_info(device_index)[0])

    accelerator.device_name, accelerator.available_memory = device_name, available_memory
