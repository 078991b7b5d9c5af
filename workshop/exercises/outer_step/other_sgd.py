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
