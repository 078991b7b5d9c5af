import torch
import torch.distributed as dist


def begin_alike(model: torch.nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers, in place."""
    ...
