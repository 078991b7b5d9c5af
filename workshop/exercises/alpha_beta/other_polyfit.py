import numpy as np


def fit(message_bytes, seconds):
    slope, start = np.polyfit(message_bytes, seconds, 1, w=1 / seconds)
    return np.array([start, 1 / slope])
