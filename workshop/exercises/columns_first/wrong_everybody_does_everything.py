import numpy as np


def columns_first(x, a, b, ranks):
    return [np.maximum(x @ a, 0) @ b for _ in range(ranks)]
