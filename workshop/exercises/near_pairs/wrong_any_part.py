from collections import defaultdict
from itertools import combinations

import numpy as np


def near_pairs(signatures: np.ndarray, bands: int) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, of rows that agree in all hashes of one of the bands."""
    length = signatures.shape[1] // bands
    buckets = defaultdict(set)
    for start in range(0, bands * length, length):
        for row, hashes in enumerate(signatures[:, start : start + length]):
            buckets[hashes.tobytes()].add(row)
    return {pair for rows in buckets.values() for pair in combinations(sorted(rows), 2)}
