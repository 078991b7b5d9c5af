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
