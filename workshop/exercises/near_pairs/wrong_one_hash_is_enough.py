from collections import defaultdict
from itertools import combinations

import numpy as np


def near_pairs(signatures: np.ndarray, bands: int) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, of rows that agree in all hashes of one of the bands."""
    pairs = set()
    for column in signatures.T:
        buckets = defaultdict(list)
        for row, value in enumerate(column):
            buckets[int(value)].append(row)
        for rows in buckets.values():
            pairs.update(combinations(rows, 2))
    return pairs
