import numpy as np


def gptq_column(weight, hessian, j, nearest):
    moved = weight.copy()
    inverse = np.linalg.inv(hessian[j:, j:])
    error = (weight[:, j] - nearest(weight[:, j])) / inverse[0, 0]
    for k in range(j + 1, weight.shape[1]):
        moved[:, k] -= error * inverse[0, k - j]
    moved[:, j] = nearest(weight[:, j])
    return moved
