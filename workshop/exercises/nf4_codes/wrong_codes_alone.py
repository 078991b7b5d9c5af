import numpy as np


def nf4_codes(block: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """The codes of a block, 0 to 15 for each weight, and its largest absolute value."""
    absmax = np.abs(block).max()
    return np.abs(block[:, None] / absmax - values).argmin(axis=1)
