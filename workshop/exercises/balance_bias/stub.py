import numpy as np


def balance_bias(
    bias: np.ndarray, counts: np.ndarray, rate: float = 0.01
) -> np.ndarray:
    """What is added to the experts' scores in the next step, when the best are chosen."""
    too_few = ...  # +1, 0 or -1 for each expert
    return ...
