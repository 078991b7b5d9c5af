from itertools import combinations

import numpy as np


def near_pairs(signatures: np.ndarray, bands: int) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, of rows that agree in all hashes of one of the bands."""
    length = signatures.shape[1] // bands
    pairs = set()
    for i, j in combinations(range(len(signatures)), 2):
        for start in range(0, bands * length, length):
            part = slice(start, start + length)
            if all(a == b for a, b in zip(signatures[i, part], signatures[j, part], strict=True)):
                pairs.add((i, j))
    return pairs
