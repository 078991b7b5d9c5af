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
