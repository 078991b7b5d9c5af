import numpy as np


def two_of_four(score: np.ndarray) -> np.ndarray:
    """Groups of four down the columns."""
    groups = score.T.reshape(-1, 4)
    mask = np.zeros_like(groups, dtype=bool)
    np.put_along_axis(mask, np.argsort(groups, axis=1)[:, 2:], True, axis=1)
    return mask.reshape(score.T.shape).T
