"""Half the bytes: gradients travel in 16 bits.

fp32 gradients are rounded to bf16, summed on the wire, and widened again. bf16 keeps fp32's range, so nothing
overflows; dividing before the sum keeps it in range for fp16 too. What is lost is precision: 8 bits of
mantissa, and the additions on the way round as well. No memory, no error feedback: rounding to the nearest
has no preferred direction, so the errors of many steps cancel by themselves.

PyTorch has the same hook (`default_hooks.bf16_compress_hook`), which it refuses without NCCL.
"""

# No `from __future__ import annotations` here: DDP compares a hook's annotations with its own classes.
import torch
import torch.distributed as dist


def bf16_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Mean over ranks of a bucket, (numbers,), sent as bfloat16; a future of it, in place."""
    flat = bucket.buffer()
    narrow = flat.to(torch.bfloat16).div_(dist.get_world_size(group))
    sending = dist.all_reduce(narrow, group=group, async_op=True).get_future()
    return sending.then(lambda _: flat.copy_(narrow))
