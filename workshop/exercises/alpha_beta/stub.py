import numpy as np


def fit(message_bytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """alpha in seconds and beta in bytes per second of t = alpha + n / beta, by relative least squares."""
    ...
    return alpha, beta
