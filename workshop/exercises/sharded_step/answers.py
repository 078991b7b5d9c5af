# %% other: all_to_all
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
        whole = gather(shard)
        of_weight, gradient = x.T @ gradient / world_size, gradient @ whole.T
        received = torch.empty_like(of_weight)
        dist.all_to_all_single(received, of_weight)
        shard.sub_(sum(received.chunk(world_size)), alpha=lr)


# %% other: a_reduce_to_each_owner
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
        parts = [part.clone() for part in (x.T @ gradient).chunk(world_size)]
        gradient = gradient @ gather(shard).T
        for owner, part in enumerate(parts):
            dist.reduce(part, owner)
        shard -= lr * parts[dist.get_rank()] / world_size


# %% other: by_index
import torch
import torch.distributed as dist


def sharded_step(shards, x, gather, lr):
    inputs = [x]
    for shard in shards:
        inputs.append(inputs[-1] @ gather(shard))
    gradient = 2 * (inputs[-1] - x) / x.numel()
    for place in range(len(shards) - 1, -1, -1):
        of_weight = inputs[place].T @ gradient
        gradient = gradient @ gather(shards[place]).T
        mine = torch.empty_like(shards[place])
        dist.reduce_scatter(mine, list(of_weight.chunk(dist.get_world_size())))
        shards[place] = shards[place] - lr * mine / dist.get_world_size()


# %% wrong: the_sum
# message: the sum of the gradients
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
        of_weight = x.T @ gradient
        gradient = gradient @ gather(shard).T  # gathered again
        mine = torch.empty_like(shard)
        dist.reduce_scatter(mine, list(of_weight.chunk(world_size)))
        shard -= lr * mine


# %% wrong: its_own_gradient
# message: this rank's own part of the batch
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
        of_weight = x.T @ gradient
        gradient = gradient @ gather(shard).T
        shard -= lr * of_weight.chunk(world_size)[dist.get_rank()]


# %% wrong: updates_first
# message: through weights that were already updated
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
        of_weight = x.T @ gradient
        mine = torch.empty_like(shard)
        dist.reduce_scatter(mine, list(of_weight.chunk(world_size)))
        shard -= lr * mine / world_size
        gradient = gradient @ gather(shard).T


# %% wrong: a_new_tensor
# message: as it was before the step
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
        of_weight = x.T @ gradient
        gradient = gradient @ gather(shard).T  # gathered again
        mine = torch.empty_like(shard)
        dist.reduce_scatter(mine, list(of_weight.chunk(world_size)))
        shard = shard - lr * mine / world_size


# %% wrong: uphill
# message: away from the minimum
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
        of_weight = x.T @ gradient
        gradient = gradient @ gather(shard).T  # gathered again
        mine = torch.empty_like(shard)
        dist.reduce_scatter(mine, list(of_weight.chunk(world_size)))
        shard += lr * mine / world_size


# %% wrong: all_reduces
# message: sends 4 passes
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
        of_weight = x.T @ gradient
        gradient = gradient @ gather(shard).T  # gathered again
        dist.all_reduce(of_weight)
        mine = of_weight.chunk(world_size)[dist.get_rank()]
        shard -= lr * mine / world_size


# %% wrong: keeps_them_whole
# message: `gather` was called 2 times
import torch
import torch.distributed as dist


def sharded_step(shards: list, x: torch.Tensor, gather, lr: float) -> None:
    """One step of SGD on shards, in place: the stack of matrices learns to copy x."""
    world_size = dist.get_world_size()
    wanted, inputs, kept = x, [], []
    for shard in shards:  # forward
        inputs.append(x)
        kept.append(gather(shard))
        x = x @ kept[-1]
    gradient = 2 * (x - wanted) / x.numel()  # the loss is the mean square
    for shard, x in zip(reversed(shards), reversed(inputs), strict=True):
        of_weight = x.T @ gradient
        gradient = gradient @ kept.pop().T
        mine = torch.empty_like(shard)
        dist.reduce_scatter(mine, list(of_weight.chunk(world_size)))
        shard -= lr * mine / world_size
