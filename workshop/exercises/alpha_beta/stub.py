import numpy as np


def fit(message_bytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """alpha (s) and beta (bytes/s) of t = alpha + n / beta: relative least squares."""
    ...
    return alpha, beta
