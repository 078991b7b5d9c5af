# %% other: best_fit
import bisect


def pack_documents(lengths, room):
    rows: dict[int, list[int]] = {}
    free: list[tuple[int, int]] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        place = bisect.bisect_left(free, (lengths[number], -1))
        left, row = free.pop(place) if place < len(free) else (room, len(rows))
        rows.setdefault(row, []).append(number)
        bisect.insort(free, (left - lengths[number], row))
    return list(rows.values())


# %% other: by_numpy
import numpy as np


def pack_documents(lengths: list[int], room: int) -> list[list[int]]:
    rows: list[list[int]] = []
    left = np.zeros(0, dtype=int)
    for number in np.argsort(-np.array(lengths, dtype=int), kind="stable"):
        fits = np.flatnonzero(left >= lengths[number])
        if len(fits) == 0:
            rows.append([])
            left = np.append(left, room)
        row = fits[0] if len(fits) else -1
        rows[row].append(number)
        left[row] -= lengths[number]
    return rows


# %% wrong: as_they_come
# message: more than first fit decreasing
def pack_documents(lengths: list[int], room: int) -> list[list[int]]:
    rows, left = [], []
    for number, length in enumerate(lengths):
        for row in range(len(rows)):
            if left[row] >= length:
                break
        else:
            row = len(rows)
            rows.append([])
            left.append(room)
        rows[row].append(number)
        left[row] -= length
    return rows


# %% wrong: overfull
# message: holds
def pack_documents(lengths: list[int], room: int) -> list[list[int]]:
    rows, left = [], []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        for row in range(len(rows)):
            if left[row] > 0:
                break
        else:
            row = len(rows)
            rows.append([])
            left.append(room)
        rows[row].append(number)
        left[row] -= lengths[number]
    return rows


# %% wrong: lengths_for_numbers
# message: not the number of a document
def pack_documents(lengths: list[int], room: int) -> list[list[int]]:
    rows, left = [], []
    for length in sorted(lengths, reverse=True):
        for row in range(len(rows)):
            if left[row] >= length:
                break
        else:
            row = len(rows)
            rows.append([])
            left.append(room)
        rows[row].append(length)
        left[row] -= length
    return rows


# %% wrong: forgets_the_new
# message: is in no row
def pack_documents(lengths: list[int], room: int) -> list[list[int]]:
    rows, left = [], []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        for row in range(len(rows)):
            if left[row] >= lengths[number]:
                rows[row].append(number)
                left[row] -= lengths[number]
                break
        else:
            rows.append([])
            left.append(room)
    return rows
