# %% other: blocks_by_torch
import torch


def rank_batch(
    step: int,
    rank: int,
    world_size: int,
    num_samples: int,
    global_batch: int,
    seed: int,
) -> torch.Tensor:
    """Numbers of the samples that this rank reads in this step."""
    share = global_batch // world_size
    first = step * global_batch + rank * share
    mine = []
    for position in range(first, first + share):
        epoch, place = divmod(position, num_samples)
        drawn = torch.Generator().manual_seed(1_000_003 * seed + epoch)
        mine.append(torch.randperm(num_samples, generator=drawn)[place])
    return torch.stack(mine)


# %% wrong: same_order_in_every_epoch
# message: order of its own
import numpy as np


def rank_batch(
    step: int,
    rank: int,
    world_size: int,
    num_samples: int,
    global_batch: int,
    seed: int,
) -> list[int]:
    """Numbers of the samples that this rank reads in this step."""
    first = step * global_batch
    positions = range(first + rank, first + global_batch, world_size)
    orders = {
        epoch: np.random.default_rng(seed).permutation(num_samples)
        for epoch in {position // num_samples for position in positions}
    }
    return [int(orders[p // num_samples][p % num_samples]) for p in positions]


# %% wrong: each_rank_shuffles
# message: the same order on every rank
import numpy as np


def rank_batch(
    step: int,
    rank: int,
    world_size: int,
    num_samples: int,
    global_batch: int,
    seed: int,
) -> list[int]:
    """Numbers of the samples that this rank reads in this step."""
    first = step * global_batch
    positions = range(first + rank, first + global_batch, world_size)
    orders = {
        epoch: np.random.default_rng((seed, epoch, rank)).permutation(num_samples)
        for epoch in {position // num_samples for position in positions}
    }
    return [int(orders[p // num_samples][p % num_samples]) for p in positions]


# %% wrong: own_part_of_the_data
# message: depend on the number of ranks
import numpy as np


def rank_batch(
    step: int,
    rank: int,
    world_size: int,
    num_samples: int,
    global_batch: int,
    seed: int,
) -> list[int]:
    """Numbers of the samples that this rank reads in this step."""
    part, batch = num_samples // world_size, global_batch // world_size
    orders = {}
    mine = []
    for position in range(step * batch, (step + 1) * batch):
        epoch, place = divmod(position, part)
        if epoch not in orders:
            orders[epoch] = np.random.default_rng((seed, epoch, rank)).permutation(part)
        mine.append(rank * part + int(orders[epoch][place]))
    return mine


# %% wrong: the_end_is_left_out
# message: every sample once
import numpy as np


def rank_batch(
    step: int,
    rank: int,
    world_size: int,
    num_samples: int,
    global_batch: int,
    seed: int,
) -> list[int]:
    """Numbers of the samples that this rank reads in this step."""
    steps = num_samples // global_batch
    epoch, step = divmod(step, steps)
    order = np.random.default_rng((seed, epoch)).permutation(num_samples)
    batch = order[step * global_batch : (step + 1) * global_batch]
    return [int(sample) for sample in batch[rank::world_size]]


# %% wrong: new_dice
# message: asked again
import numpy as np


def rank_batch(
    step: int,
    rank: int,
    world_size: int,
    num_samples: int,
    global_batch: int,
    seed: int,
) -> list[int]:
    """Numbers of the samples that this rank reads in this step."""
    first = step * global_batch
    positions = range(first + rank, first + global_batch, world_size)
    orders = {
        epoch: np.random.permutation(num_samples)
        for epoch in {position // num_samples for position in positions}
    }
    return [int(orders[p // num_samples][p % num_samples]) for p in positions]


# %% wrong: seed_not_used
# message: whatever the seed
import numpy as np


def rank_batch(
    step: int,
    rank: int,
    world_size: int,
    num_samples: int,
    global_batch: int,
    seed: int,
) -> list[int]:
    """Numbers of the samples that this rank reads in this step."""
    first = step * global_batch
    positions = range(first + rank, first + global_batch, world_size)
    orders = {
        epoch: np.random.default_rng(epoch).permutation(num_samples)
        for epoch in {position // num_samples for position in positions}
    }
    return [int(orders[p // num_samples][p % num_samples]) for p in positions]


# %% wrong: all_of_the_batch
# message: every rank reads as many
import numpy as np


def rank_batch(
    step: int,
    rank: int,
    world_size: int,
    num_samples: int,
    global_batch: int,
    seed: int,
) -> list[int]:
    """Numbers of the samples that this rank reads in this step."""
    first = step * global_batch
    positions = range(first, first + global_batch)
    orders = {
        epoch: np.random.default_rng((seed, epoch)).permutation(num_samples)
        for epoch in {position // num_samples for position in positions}
    }
    return [int(orders[p // num_samples][p % num_samples]) for p in positions]


# %% wrong: in_order
# message: not shuffled
def rank_batch(
    step: int,
    rank: int,
    world_size: int,
    num_samples: int,
    global_batch: int,
    seed: int,
) -> list[int]:
    """Numbers of the samples that this rank reads in this step."""
    first = step * global_batch
    positions = range(first + rank, first + global_batch, world_size)
    return [position % num_samples for position in positions]
