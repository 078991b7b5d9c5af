import numpy as np


def columns_first(x, a, b, ranks):
    """Each rank's part of relu(x @ a) @ b; a (inputs, width), b (width, outputs)."""
    parts = []
    width = a.shape[1] // ranks
    for rank in range(ranks):
        a_part = a[:, rank * width : (rank + 1) * width]
        b_part = b[rank::ranks]
        parts.append(np.maximum(x @ a_part, 0) @ b_part)
    return parts
