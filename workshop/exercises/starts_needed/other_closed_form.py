import math


def starts_needed(work: int, limit: int, start: int, every: int) -> int:
    trains = limit - start
    if work <= trains:
        return 1
    kept = trains - trains % every if trains > 0 else 0
    return 1 + math.ceil((work - trains) / kept) if kept else 0
