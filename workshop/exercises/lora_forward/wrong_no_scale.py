import numpy as np


def lora_forward(x: np.ndarray, weight: np.ndarray, a: np.ndarray, b: np.ndarray, alpha: float) -> np.ndarray:
    """W x + (alpha / r) B A x for each row: (tokens, inputs) -> (tokens, outputs)."""
    frozen = x @ weight.T
    change = (x @ a.T) @ b.T
    return frozen + change
