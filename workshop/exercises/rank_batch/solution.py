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
        epoch: np.random.default_rng((seed, epoch)).permutation(num_samples)
        for epoch in {position // num_samples for position in positions}
    }
    return [int(orders[p // num_samples][p % num_samples]) for p in positions]
