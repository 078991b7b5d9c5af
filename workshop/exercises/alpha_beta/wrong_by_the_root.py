import numpy as np


def fit(message_bytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    seconds_per_byte, alpha = np.polyfit(message_bytes, seconds, 1, w=seconds**-0.5)
    return alpha, 1 / seconds_per_byte
