import torch.distributed as dist


def zero_step(weights, gradient, update):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    length = len(weights) // world_size
    for owner in range(world_size):  # a reduce to each owner, and a broadcast from it
        part = slice(owner * length, (owner + 1) * length)
        dist.reduce(gradient[part], owner)
    mine = slice(rank * length, (rank + 1) * length)
    update(weights[mine], gradient[mine] / world_size)
    for owner in range(world_size):
        dist.broadcast(weights[owner * length : (owner + 1) * length], owner)
