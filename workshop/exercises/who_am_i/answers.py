# %% other: backwards
def my_share(items: list, rank: int, world_size: int) -> list:
    return items[::-1][rank::world_size]


# %% other: by_remainder
def my_share(items, rank, world_size):
    return [item for place, item in enumerate(items) if place % world_size == rank]


# %% other: slices
def my_share(items: list, rank: int, world_size: int) -> list:
    begin = rank * len(items) // world_size
    end = (rank + 1) * len(items) // world_size
    return items[begin:end]


# %% wrong: slices_that_drop_the_rest
# message: Nobody took items 8, 9
def my_share(items: list, rank: int, world_size: int) -> list:
    size = len(items) // world_size
    return items[rank * size : (rank + 1) * size]


# %% wrong: slices_rounded_up
# message: Rank 0 took 3 items and rank 3 took 1
import math


def my_share(items: list, rank: int, world_size: int) -> list:
    size = math.ceil(len(items) / world_size)
    return items[rank * size : (rank + 1) * size]


# %% wrong: off_by_one
# message: Nobody took item 0
def my_share(items: list, rank: int, world_size: int) -> list:
    return items[rank + 1 :: world_size]


# %% wrong: the_same_share_for_all
# message: All ranks took the same items
def my_share(items: list, rank: int, world_size: int) -> list:
    return items[::world_size]
