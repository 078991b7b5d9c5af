from collections import defaultdict
from itertools import combinations

import numpy as np


def near_pairs(signatures: np.ndarray, bands: int) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, of rows that agree in all hashes of one of the bands."""
    length = signatures.shape[1] // bands
    pairs = []
    for start in range(0, bands * length, length):
        buckets = defaultdict(list)
        for row, hashes in enumerate(signatures[:, start : start + length]):
            buckets[hashes.tobytes()].append(row)
        for rows in buckets.values():
            pairs.extend(combinations(rows, 2))
    return pairs
