import numpy as np


def balance_bias(
    bias: np.ndarray, counts: np.ndarray, rate: float = 0.01
) -> np.ndarray:
    """What the next step adds to the experts' scores when it chooses the best."""
    too_few = ...  # +1, 0 or -1 for each expert
    return ...
