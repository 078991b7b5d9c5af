import numpy as np


def gptq_column(weight, inverse, j, nearest):
    """The matrix with column j rounded, and the later ones making up for it."""
    moved = weight.copy()
    moved[:, j] = nearest(weight[:, j])
    error = ...
    moved[:, j + 1 :] -= np.outer(error, ...)
    return moved
