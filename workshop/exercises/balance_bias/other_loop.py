import numpy as np


def balance_bias(bias, counts, rate):
    return np.array(
        [
            b + (rate if c * len(counts) < counts.sum() else -rate if c * len(counts) > counts.sum() else 0)
            for b, c in zip(bias, counts, strict=True)
        ]
    )
