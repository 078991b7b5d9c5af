import numpy as np


def gptq_column(weight, hessian, j, nearest):
    """The matrix with column j rounded, and the later ones making up for it."""
    moved, later = weight.copy(), slice(j + 1, None)
    moved[:, j] = nearest(weight[:, j])
    added = moved[:, j] - weight[:, j]  # the change, one number per row
    inverse = np.linalg.inv(hessian)
    move = np.outer(added, inverse[j, later] / inverse[j, j])
    moved[:, later] += move
    return moved
