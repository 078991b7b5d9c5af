def my_share(items: list, rank: int, world_size: int) -> list:
    return items[::-1][rank::world_size]
