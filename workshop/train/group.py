"""Join the ranks' group, also in a second attempt: what ``torchrun --max-restarts`` needs on gloo.

torchrun keeps one store through all attempts, and gloo leaves its addresses there. With torch 2.13 ranks that
were started again find those of the dead attempt first and give up ("Gloo connectFullMesh failed ...
Connection refused"; `workshop.launch` makes a new store for each attempt and has no such trouble). A prefix
for every attempt is all it takes. In a job torchrun keeps none (TORCH_DISABLE_SHARE_RDZV_TCP_STORE).
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from workshop.parallel.materialise import local_device


def join_group() -> torch.device:
    """Join the default group, if that is still to do; the device of this rank.

    One GPU for each rank of the node where there are enough, and NCCL; else the CPU, and gloo.

    Raises:
        ValueError: the process was not started as a rank (no RANK in its environment).
    """
    if "RANK" not in os.environ and not dist.is_initialized():
        raise ValueError(
            "this process is no rank: start the program with torchrun --nproc-per-node N, or in a notebook "
            "with %torchrun -n N"
        )
    device = _device()
    if dist.is_initialized():
        return device
    backend = dist.get_default_backend_for_device(device)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # else rank 0 opens a new one each time
    if attempt == "0" or not kept:
        dist.init_process_group(backend)
        return device
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"attempt-{attempt}", store),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    return device


def _device() -> torch.device:
    device = local_device()
    if device.type == "cpu":
        return device
    index = int(os.environ.get("LOCAL_RANK", "0")) % max(1, torch.accelerator.device_count())
    torch.accelerator.set_device_index(index)
    return torch.device(device.type, index)
