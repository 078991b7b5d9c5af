import numpy as np


def gptq_column(weight, inverse, j, nearest):
    """The matrix with column j rounded, and the later ones making up for it."""
    moved = weight.copy()
    moved[:, j] = nearest(weight[:, j])
    error = (weight[:, j] - moved[:, j]) / inverse[j, j]
    rounded = moved[:, j].copy()
    moved = weight - np.outer(error, inverse[j])
    moved[:, j] = rounded
    return moved
