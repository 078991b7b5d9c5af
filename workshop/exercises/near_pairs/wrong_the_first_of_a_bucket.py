import numpy as np


def near_pairs(signatures: np.ndarray, bands: int) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, of rows that agree in all hashes of one of the bands."""
    length = signatures.shape[1] // bands
    pairs = set()
    for start in range(0, bands * length, length):
        first = {}
        for row, hashes in enumerate(signatures[:, start : start + length]):
            known = first.setdefault(hashes.tobytes(), row)
            if known != row:
                pairs.add((known, row))
    return pairs
