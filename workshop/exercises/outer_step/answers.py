# %% other: sgd
import torch
import torch.distributed as dist


def outer_step(anchor, weights, momentum, lr=0.7, beta=0.9):
    start = torch.nn.Parameter(anchor.clone())
    optimizer = torch.optim.SGD([start], lr=lr, momentum=beta, nesterov=True)
    optimizer.state[start]["momentum_buffer"] = momentum.clone()
    moved = (anchor - weights) / dist.get_world_size()
    dist.all_reduce(moved)
    start.grad = moved
    optimizer.step()
    momentum.copy_(optimizer.state[start]["momentum_buffer"])
    anchor.copy_(start.detach())
    weights.copy_(anchor)


# %% wrong: the_sum
# message: That is with the sum of the weights
import torch.distributed as dist


def outer_step(anchor, weights, momentum, lr=0.7, beta=0.9):
    """DiLoCo's meeting of islands: anchor, weights and momentum, all 1-D tensors, are updated in place."""
    mean = weights.clone()
    dist.all_reduce(mean)
    moved = anchor - mean
    momentum.mul_(beta).add_(moved)
    anchor -= lr * (moved + beta * momentum)
    weights.copy_(anchor)


# %% wrong: nobody_asked
# message: That is this island's own move
def outer_step(anchor, weights, momentum, lr=0.7, beta=0.9):
    """DiLoCo's meeting of islands: anchor, weights and momentum, all 1-D tensors, are updated in place."""
    mean = weights.clone()
    moved = anchor - mean
    momentum.mul_(beta).add_(moved)
    anchor -= lr * (moved + beta * momentum)
    weights.copy_(anchor)


# %% wrong: plain_momentum
# message: Nesterov looks ahead
import torch.distributed as dist


def outer_step(anchor, weights, momentum, lr=0.7, beta=0.9):
    """DiLoCo's meeting of islands: anchor, weights and momentum, all 1-D tensors, are updated in place."""
    mean = weights.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    moved = anchor - mean
    momentum.mul_(beta).add_(moved)
    anchor -= lr * momentum
    weights.copy_(anchor)


# %% wrong: not_back_to_the_anchor
# message: copy the anchor into weights
import torch.distributed as dist


def outer_step(anchor, weights, momentum, lr=0.7, beta=0.9):
    """DiLoCo's meeting of islands: anchor, weights and momentum, all 1-D tensors, are updated in place."""
    mean = weights.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    moved = anchor - mean
    momentum.mul_(beta).add_(moved)
    anchor -= lr * (moved + beta * momentum)


# %% wrong: uphill
# message: It went in the opposite direction
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
