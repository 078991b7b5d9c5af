import numpy as np


def two_of_four(score: np.ndarray) -> np.ndarray:
    """Four that lie a quarter of a row apart."""
    groups = score.reshape(len(score), 4, -1)
    mask = np.zeros_like(groups, dtype=bool)
    np.put_along_axis(mask, np.argsort(groups, axis=1)[:, 2:], True, axis=1)
    return mask.reshape(score.shape)
