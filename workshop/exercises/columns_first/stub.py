import numpy as np


def columns_first(x, a, b, ranks):
    """Each rank's part of relu(x @ a) @ b; a (inputs, width), b (width, outputs)."""
    parts = []
    for rank in range(ranks):
        a_part = ...
        b_part = ...
        parts.append(np.maximum(x @ a_part, 0) @ b_part)
    return parts
