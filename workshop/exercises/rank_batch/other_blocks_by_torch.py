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
