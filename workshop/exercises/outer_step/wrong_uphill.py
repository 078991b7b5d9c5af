import torch.distributed as dist


def outer_step(anchor, weights, momentum, lr=0.7, beta=0.9):
    """DiLoCo's meeting of islands: anchor, weights and momentum, all 1-D tensors, are updated in place."""
    mean = weights.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    moved = anchor - mean
    momentum.mul_(beta).add_(moved)
    anchor += lr * (moved + beta * momentum)
    weights.copy_(anchor)
