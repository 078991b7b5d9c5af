import numpy as np


def two_of_four(score: np.ndarray) -> np.ndarray:
    """A weight stays where fewer than two of its group have a higher score."""
    groups = score.reshape(score.shape[0], -1, 4)
    num_higher = (groups[..., None, :] > groups[..., :, None]).sum(axis=-1)
    return (num_higher < 2).reshape(score.shape)
