"""PyTorch's own context parallelism (`torch.distributed.tensor.experimental`), behind the call of ours.

It is a ring too. Queries, keys and values become DTensors cut along the sequence, and while its dispatcher
is on, `scaled_dot_product_attention` of such tensors is a loop over everybody's keys, with the GPU's fused
kernel in it. Positions are dealt out "head and tail", which is our zigzag: chunk r and chunk 2N-1-r of 2N. By
default all keys are gathered after the first step (so Llama 3 was trained, arXiv 2407.21783, section 3.3.2);
`set_rotate_method("alltoall")` hands them on in a ring instead.

**On a CPU it does not run.** It knows the three fused kernels of GPUs (flash, memory efficient, cuDNN); the
CPU's own (`_scaled_dot_product_flash_attention_for_cpu`) has no sharding rule. So our GPU path has no test
here. It was written after torch 2.13's source, whose dispatcher (pytorch/pytorch pull request 164500) is
called experimental and may change.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

Group = dist.ProcessGroup | None
SEQUENCE = 2  # the dim of positions in (batch, heads, positions, head_dim)


def check_device(device: torch.device) -> None:
    """ValueError where torch's context parallelism has no attention kernel that it can cut."""
    if device.type != "cuda":
        raise ValueError(
            f"method 'torch' on {device.type!r}: torch.distributed.tensor has no sharding rule for the CPU's "
            "attention kernel (aten._scaled_dot_product_flash_attention_for_cpu), only for those of GPUs; "
            "use 'ring' or 'ulysses' here"
        )


def torch_attention(query: Tensor, key: Tensor, value: Tensor, *, group: Group = None) -> Tensor:
    """As `ring_attention`, causal and in zigzag order, by torch's dispatcher. GPUs only; untested here.

    The shapes are those of `ring_attention`.

    The dispatcher stays on afterwards, for backward needs it: from then on this process cuts *every*
    attention of DTensors along the sequence. Key heads are repeated for the query heads that share them, for
    not every kernel knows of shared heads; so they travel repeated.

    Raises ValueError on another device than a GPU.
    """
    check_device(query.device)
    from torch.distributed.tensor.experimental import _attention

    _attention._cp_options.enable_load_balance = True  # positions are in head-and-tail order
    _attention._enable_context_parallel_dispatcher()
    ranks: dist.ProcessGroup = dist.group.WORLD if group is None else group  # type: ignore[assignment]
    mesh = DeviceMesh.from_group(ranks, query.device.type)
    shared = query.shape[1] // key.shape[1]
    parts = [
        DTensor.from_local(x.contiguous(), mesh, [Shard(SEQUENCE)], run_check=False)
        for x in (query, key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1))
    ]
    return _attend(*parts).to_local()


def _attend(query: DTensor, key: DTensor, value: DTensor) -> DTensor:
    """The one call that the dispatcher takes over."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        mixed: DTensor = F.scaled_dot_product_attention(query, key, value, is_causal=True)  # type: ignore[assignment]
    return mixed
