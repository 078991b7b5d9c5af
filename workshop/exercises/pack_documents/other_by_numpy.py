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
