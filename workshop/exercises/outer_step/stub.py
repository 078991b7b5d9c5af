import torch.distributed as dist


def outer_step(anchor, weights, momentum, lr=0.7, beta=0.9):
    """DiLoCo's meeting of islands; updates the three 1-D tensors in place."""
    mean = weights.clone()
    ...
    moved = anchor - mean
    ...
