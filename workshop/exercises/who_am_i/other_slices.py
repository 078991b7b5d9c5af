def my_share(items: list, rank: int, world_size: int) -> list:
    begin = rank * len(items) // world_size
    end = (rank + 1) * len(items) // world_size
    return items[begin:end]
