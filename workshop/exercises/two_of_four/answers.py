# %% other: counts_the_higher
import numpy as np


def two_of_four(score: np.ndarray) -> np.ndarray:
    """A weight stays where fewer than two of its group have a higher score."""
    groups = score.reshape(score.shape[0], -1, 4)
    num_higher = (groups[..., None, :] > groups[..., :, None]).sum(axis=-1)
    return (num_higher < 2).reshape(score.shape)


# %% wrong: half_of_a_row
# message: at any place
import numpy as np


def two_of_four(score: np.ndarray) -> np.ndarray:
    """Half of each row, wherever it lies."""
    return score > np.median(score, axis=1, keepdims=True)


# %% wrong: the_two_lowest
# message: two lowest of each group
import numpy as np


def two_of_four(score: np.ndarray) -> np.ndarray:
    """True for the two highest scores of every four neighbours of a row."""
    groups = score.reshape(-1, 4)
    mask = np.zeros_like(groups, dtype=bool)
    best = np.argsort(groups, axis=1)[:, :2]
    np.put_along_axis(mask, best, True, axis=1)
    return mask.reshape(score.shape)


# %% wrong: down_the_columns
# message: lie down the columns
import numpy as np


def two_of_four(score: np.ndarray) -> np.ndarray:
    """Groups of four down the columns."""
    groups = score.T.reshape(-1, 4)
    mask = np.zeros_like(groups, dtype=bool)
    np.put_along_axis(mask, np.argsort(groups, axis=1)[:, 2:], True, axis=1)
    return mask.reshape(score.T.shape).T


# %% wrong: a_quarter_apart
# message: each must keep two
import numpy as np


def two_of_four(score: np.ndarray) -> np.ndarray:
    """Four that lie a quarter of a row apart."""
    groups = score.reshape(len(score), 4, -1)
    mask = np.zeros_like(groups, dtype=bool)
    np.put_along_axis(mask, np.argsort(groups, axis=1)[:, 2:], True, axis=1)
    return mask.reshape(score.shape)


# %% wrong: three_of_four
# message: keeps 3 of four
import numpy as np


def two_of_four(score: np.ndarray) -> np.ndarray:
    """True for the two highest scores of every four neighbours of a row."""
    groups = score.reshape(-1, 4)
    mask = np.zeros_like(groups, dtype=bool)
    best = np.argsort(groups, axis=1)[:, 1:]
    np.put_along_axis(mask, best, True, axis=1)
    return mask.reshape(score.shape)
