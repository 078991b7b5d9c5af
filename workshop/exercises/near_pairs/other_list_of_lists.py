import numpy as np


def near_pairs(signatures: np.ndarray, bands: int) -> list[tuple[int, int]]:
    """Pairs (i, j), i < j, of rows that agree in all hashes of one of the bands."""
    parts = np.split(signatures, bands, axis=1)
    found: set[tuple[int, int]] = set()
    for part in parts:
        order = np.lexsort(part.T)
        same = (part[order][1:] == part[order][:-1]).all(axis=1)
        run = [int(order[0])] if len(order) else []
        for alike, row in zip(same, order[1:], strict=True):
            run = [*run, int(row)] if alike else [int(row)]
            found.update((min(row, other), max(row, other)) for other in run[:-1])
    return sorted((int(i), int(j)) for i, j in found)
