import numpy as np


def nf4_codes(block: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """How many of the fifteen midpoints lie below each weight."""
    absmax = max(block.max(), -block.min())
    midpoints = (values[1:] + values[:-1]) / 2
    return np.searchsorted(midpoints, block / absmax), absmax
