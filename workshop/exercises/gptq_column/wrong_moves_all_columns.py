import numpy as np


def gptq_column(weight, hessian, j, nearest):
    """The matrix with column j rounded, and all others making up for it."""
    moved = weight.copy()
    moved[:, j] = nearest(weight[:, j])
    added = moved[:, j] - weight[:, j]
    inverse = np.linalg.inv(hessian)
    return weight + np.outer(added, inverse[j] / inverse[j, j])
