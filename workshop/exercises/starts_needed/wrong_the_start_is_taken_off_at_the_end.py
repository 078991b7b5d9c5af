import math


def starts_needed(work: int, limit: int, start: int, every: int) -> int:
    return math.ceil(work / max(1, limit // every * every - start))
