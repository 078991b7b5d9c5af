import numpy as np


def gptq_column(weight, inverse, j, nearest):
    """The matrix after column j has been rounded, and the later ones have made up for it."""
    moved = weight.copy()
    moved[:, j] = nearest(weight[:, j])
    error = ...
    moved[:, j + 1 :] -= np.outer(error, ...)
    return moved
