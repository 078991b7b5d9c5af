import torch
import torch.distributed as dist


def sharded_step(shards: list, x: torch.Tensor, gather, lr: float) -> None:
    """One step of SGD on shards, in place: the stack of matrices learns to copy x."""
    world_size = dist.get_world_size()
    wanted, inputs = x, []
    for shard in shards:  # forward
        inputs.append(x)
        x = x @ gather(shard)  # gathered, used, gone
    gradient = 2 * (x - wanted) / x.numel()  # the loss is the mean square
    for shard, x in zip(reversed(shards), reversed(inputs), strict=True):
        ...  # backward
