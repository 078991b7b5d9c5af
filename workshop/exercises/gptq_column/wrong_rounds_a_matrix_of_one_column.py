import numpy as np


def gptq_column(weight, hessian, j, nearest):
    """The matrix with column j rounded, and the later ones making up for it."""
    moved, later = weight.copy(), slice(j + 1, None)
    moved[:, [j]] = nearest(weight[:, [j]])
    added = moved[:, j] - weight[:, j]  # the change, one number per row
    move = -np.linalg.solve(hessian[later, later], np.outer(hessian[later, j], added)).T
    moved[:, later] += move
    return moved
