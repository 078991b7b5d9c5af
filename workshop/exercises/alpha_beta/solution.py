import numpy as np


def fit(message_bytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """alpha in seconds and beta in bytes per second of t = alpha + n / beta, by relative least squares."""
    weight = 1 / seconds
    columns = np.column_stack([weight, weight * message_bytes])
    (alpha, seconds_per_byte), *_ = np.linalg.lstsq(columns, weight * seconds, rcond=None)
    return alpha, 1 / seconds_per_byte
