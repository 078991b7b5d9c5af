import math


def my_share(items: list, rank: int, world_size: int) -> list:
    size = math.ceil(len(items) / world_size)
    return items[rank * size : (rank + 1) * size]
