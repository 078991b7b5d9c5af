# %% other: list_of_lists
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


# %% wrong: one_hash_is_enough
# message: One equal hash
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


# %% wrong: all_parts
# message: in all parts
from collections import defaultdict
from itertools import combinations

import numpy as np


def near_pairs(signatures: np.ndarray, bands: int) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, of rows that agree in all hashes of one of the bands."""
    buckets = defaultdict(list)
    for row, hashes in enumerate(signatures):
        buckets[hashes.tobytes()].append(row)
    return {pair for rows in buckets.values() for pair in combinations(rows, 2)}


# %% wrong: any_part
# message: another text's other part
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


# %% wrong: both_ways
# message: i < j
from collections import defaultdict

import numpy as np


def near_pairs(signatures: np.ndarray, bands: int) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, of rows that agree in all hashes of one of the bands."""
    length = signatures.shape[1] // bands
    pairs = set()
    for start in range(0, bands * length, length):
        buckets = defaultdict(list)
        for row, hashes in enumerate(signatures[:, start : start + length]):
            buckets[hashes.tobytes()].append(row)
        for rows in buckets.values():
            pairs.update((i, j) for i in rows for j in rows if i != j)
    return pairs


# %% wrong: only_the_first_part
# message: first part
from collections import defaultdict
from itertools import combinations

import numpy as np


def near_pairs(signatures: np.ndarray, bands: int) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, of rows that agree in all hashes of one of the bands."""
    length = signatures.shape[1] // bands
    pairs = set()
    for start in range(0, length, length):
        buckets = defaultdict(list)
        for row, hashes in enumerate(signatures[:, start : start + length]):
            buckets[hashes.tobytes()].append(row)
        for rows in buckets.values():
            pairs.update(combinations(rows, 2))
    return pairs


# %% wrong: only_neighbours
# message: more than two texts
from collections import defaultdict
from itertools import pairwise

import numpy as np


def near_pairs(signatures: np.ndarray, bands: int) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, of rows that agree in all hashes of one of the bands."""
    length = signatures.shape[1] // bands
    pairs = set()
    for start in range(0, bands * length, length):
        buckets = defaultdict(list)
        for row, hashes in enumerate(signatures[:, start : start + length]):
            buckets[hashes.tobytes()].append(row)
        for rows in buckets.values():
            pairs.update(pairwise(rows))
    return pairs


# %% wrong: the_first_of_a_bucket
# message: it missed them
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


# %% wrong: each_band_again
# message: more than once
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


# %% wrong: each_with_each
# message: each with each
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
