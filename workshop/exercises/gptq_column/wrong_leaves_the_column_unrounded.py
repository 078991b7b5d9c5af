import numpy as np


def gptq_column(weight, inverse, j, nearest):
    """The matrix with column j rounded, and the later ones making up for it."""
    moved = weight.copy()
    moved[:, j] = nearest(weight[:, j])
    error = (weight[:, j] - moved[:, j]) / inverse[j, j]
    moved[:, j + 1 :] = weight[:, j + 1 :] - np.outer(error, inverse[j, j + 1 :])
    moved[:, j] = weight[:, j]
    return moved
