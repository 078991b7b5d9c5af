# %% other: loop
import numpy as np


def balance_bias(bias, counts, rate):
    return np.array(
        [
            b + (rate if c * len(counts) < counts.sum() else -rate if c * len(counts) > counts.sum() else 0)
            for b, c in zip(bias, counts, strict=True)
        ]
    )


# %% wrong: the_wrong_way
# message: goes the wrong way
import numpy as np


def balance_bias(bias: np.ndarray, counts: np.ndarray, rate: float = 0.01) -> np.ndarray:
    """What the next step adds to the experts' scores when it chooses the best."""
    too_few = np.sign(counts - counts.mean())
    return bias + rate * too_few


# %% wrong: forgets_the_bias
# message: the step alone
import numpy as np


def balance_bias(bias: np.ndarray, counts: np.ndarray, rate: float = 0.01) -> np.ndarray:
    """What the next step adds to the experts' scores when it chooses the best."""
    too_few = np.sign(counts.mean() - counts)
    return rate * too_few


# %% wrong: in_proportion
# message: take the sign
import numpy as np


def balance_bias(bias: np.ndarray, counts: np.ndarray, rate: float = 0.01) -> np.ndarray:
    """What the next step adds to the experts' scores when it chooses the best."""
    too_few = counts.mean() - counts
    return bias + rate * too_few


# %% wrong: against_the_busiest
# message: Some must go down
import numpy as np


def balance_bias(bias: np.ndarray, counts: np.ndarray, rate: float = 0.01) -> np.ndarray:
    """What the next step adds to the experts' scores when it chooses the best."""
    too_few = np.sign(counts.max() - counts)
    return bias + rate * too_few


# %% wrong: in_place
# message: changed the array
import numpy as np


def balance_bias(bias: np.ndarray, counts: np.ndarray, rate: float = 0.01) -> np.ndarray:
    """What the next step adds to the experts' scores when it chooses the best."""
    too_few = np.sign(counts.mean() - counts)
    bias += rate * too_few
    return bias
