"""Accelerate on ranks without GPUs: the same branches that it takes on GPUs, over gloo.

Accelerate decides by the hardware what ``accelerate launch`` with DDP, FSDP or DeepSpeed means. Without an
accelerator it decides for one process: two ranks start, each believes that it is rank 0 of 1, both train,
both end with exit code 0, and nothing was sharded. That would be no lesson. `ranks_like_gpus` changes the
three places where the decision falls, and nothing else:

1. the process group: gloo, and the type that GPUs would have (``MULTI_GPU``; FSDP and DeepSpeed follow);
2. the device: the CPU, and no device number for DistributedDataParallel;
3. DeepSpeed: no kernel of shared memory, which it would compile for a minute on its first start.

On a machine with an accelerator it does nothing at all. A program that calls it should still check what no
error will tell it::

    ranks_like_gpus()
    accelerator = Accelerator()
    assert accelerator.num_processes == int(os.environ.get("WORLD_SIZE", 1))
"""

from __future__ import annotations

import os
from typing import Any

import torch


def ranks_like_gpus() -> None:
    """Make Accelerate treat gloo ranks on CPUs like ranks on GPUs; call it before ``Accelerator()``."""
    if torch.accelerator.is_available():
        return
    from accelerate.state import DistributedType, PartialState

    def over_gloo(
        _: Any,
        cpu: bool = False,  # noqa: ARG001
        sagemaker_dp: bool = False,  # noqa: ARG001
        backend: str | None = None,
    ) -> Any:
        """Backend and type, as `PartialState._prepare_backend` answers them."""
        alone = "LOCAL_RANK" not in os.environ
        return (backend, DistributedType.NO) if alone else ("gloo", DistributedType.MULTI_GPU)

    PartialState._prepare_backend = over_gloo
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # or DeepSpeed, which Accelerate imports, wonders aloud
    os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"  # DistributedDataParallel(device_ids=None)
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        from workshop.parallel.deepspeed_zero import skip_shared_memory_kernel

        skip_shared_memory_kernel()
