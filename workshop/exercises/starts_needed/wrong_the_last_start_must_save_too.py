import math


def starts_needed(work: int, limit: int, start: int, every: int) -> int:
    kept = (limit - start) // every * every
    return math.ceil(work / kept) if kept else 0
