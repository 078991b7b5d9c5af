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
