# %% other: closed_form
import math


def starts_needed(work: int, limit: int, start: int, every: int) -> int:
    trains = limit - start
    if work <= trains:
        return 1
    kept = trains - trains % every if trains > 0 else 0
    return 1 + math.ceil((work - trains) / kept) if kept else 0


# %% wrong: all_of_the_limit_is_training
# message: Each start also loses its first seconds
import math


def starts_needed(work: int, limit: int, start: int, every: int) -> int:
    return math.ceil(work / limit)


# %% wrong: nothing_is_lost_at_the_end
# message: after the last checkpoint is lost
import math


def starts_needed(work: int, limit: int, start: int, every: int) -> int:
    return math.ceil(work / (limit - start))


# %% wrong: the_last_start_must_save_too
# message: The last start need not reach a checkpoint
import math


def starts_needed(work: int, limit: int, start: int, every: int) -> int:
    kept = (limit - start) // every * every
    return math.ceil(work / kept) if kept else 0


# %% wrong: the_start_is_taken_off_at_the_end
# message: only what is left is divided
import math


def starts_needed(work: int, limit: int, start: int, every: int) -> int:
    return math.ceil(work / max(1, limit // every * every - start))
