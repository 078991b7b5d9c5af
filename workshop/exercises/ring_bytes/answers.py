# %% other: fractions
from fractions import Fraction


def ring_bytes(num_bytes, world_size):
    return 2 * num_bytes * (1 - Fraction(1, world_size))


# %% wrong: the_limit
# message: gave 2,000; wanted 1,500. That is the limit
def ring_bytes(num_bytes: float, world_size: int) -> float:
    return 2 * num_bytes


# %% wrong: to_every_other_rank
# message: sending the whole tensor to every other rank
def ring_bytes(num_bytes: float, world_size: int) -> float:
    return num_bytes * (world_size - 1)


# %% wrong: one_trip
# message: there is a second, the all-gather
def ring_bytes(num_bytes: float, world_size: int) -> float:
    return num_bytes * (world_size - 1) / world_size


# %% wrong: no_return
# message: gave nothing (None). Is a `return` missing?
def ring_bytes(num_bytes: float, world_size: int) -> float:
    chunk_bytes = num_bytes / world_size
    steps = world_size - 1
    print(2 * steps * chunk_bytes)
