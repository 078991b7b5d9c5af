def my_share(items: list, rank: int, world_size: int) -> list:
    size = len(items) // world_size
    return items[rank * size : (rank + 1) * size]
