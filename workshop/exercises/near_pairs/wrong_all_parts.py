from collections import defaultdict
from itertools import combinations

import numpy as np


def near_pairs(signatures: np.ndarray, bands: int) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, of rows that agree in all hashes of one of the bands."""
    buckets = defaultdict(list)
    for row, hashes in enumerate(signatures):
        buckets[hashes.tobytes()].append(row)
    return {pair for rows in buckets.values() for pair in combinations(rows, 2)}
