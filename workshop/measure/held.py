"""What does this rank hold now? Bytes of live tensors on its device, exact on GPUs and on the CPU.

On a GPU the caching allocator knows (`torch.cuda.memory_allocated`). On the CPU torch's own
allocator counter does (`workshop.process.live_bytes`), for tensors made after `count_from_here()`.

On a GPU cuBLAS takes workspaces from the same allocator, at the first product of each thread, and keeps them:
on a Hopper 32 MiB for the program's thread and as much for autograd's, and cuBLASLt, which adds the bias of a
linear layer, 1 MiB more (torch 2.11, H200). They are nobody's tensors, so counting begins once they are
there.
"""

from __future__ import annotations

import torch

from workshop.process import live_bytes

_base = 0


def count_from_here() -> None:
    """Begin to count: `held_bytes()` is zero now, and counts every tensor made from here on."""
    global _base
    _base = 0
    if torch.cuda.is_available():
        workspace_bytes()
    else:
        live_bytes.enable()
    _base = held_bytes()


def workspace_bytes() -> int:
    """Have cuBLAS take its workspaces for this thread and autograd's now; how many bytes that are."""
    torch.cuda.synchronize()  # a product that runs may still be using one
    torch._C._cuda_clearCublasWorkspaces()
    before = torch.cuda.memory_allocated()
    side = torch.ones(8, 8, device="cuda", requires_grad=True)
    (side @ side).sum().backward()
    torch.addmm(side[0].detach(), side.detach(), side.detach())  # with a bias: cuBLASLt's
    del side
    return torch.cuda.memory_allocated() - before


def held_bytes() -> int:
    """Bytes of tensors that this rank holds on its device, since `count_from_here()`.

    Raises `live_bytes.CounterUnavailable` where this build of torch has no counter for the CPU.
    """
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated() - _base
    return live_bytes.live_bytes() - _base
