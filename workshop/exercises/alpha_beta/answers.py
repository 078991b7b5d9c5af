# %% other: polyfit
import numpy as np


def fit(message_bytes, seconds):
    slope, start = np.polyfit(message_bytes, seconds, 1, w=1 / seconds)
    return np.array([start, 1 / slope])


# %% wrong: forgets_alpha
# message: Without an alpha a message of 8 bytes would take no time
import numpy as np


def fit(message_bytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    weight = 1 / seconds
    seconds_per_byte = (weight**2 * message_bytes * seconds).sum() / (weight**2 * message_bytes**2).sum()
    return 0.0, 1 / seconds_per_byte


# %% wrong: returns_1_beta
# message: That beta is in seconds per byte: take its inverse.
import numpy as np


def fit(message_bytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """alpha in seconds and beta in bytes per second of t = alpha + n / beta, by relative least squares."""
    weight = 1 / seconds
    columns = np.column_stack([weight, weight * message_bytes])
    (alpha, seconds_per_byte), *_ = np.linalg.lstsq(columns, weight * seconds, rcond=None)
    return alpha, seconds_per_byte


# %% wrong: unweighted
# message: the largest messages decide the whole fit
import numpy as np


def fit(message_bytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    seconds_per_byte, alpha = np.polyfit(message_bytes, seconds, 1)
    return alpha, 1 / seconds_per_byte


# %% wrong: one_number
# message: wanted the pair
def fit(message_bytes, seconds):
    return 5e-05


# %% wrong: by_the_root
# message: divide each equation by its `seconds`
import numpy as np


def fit(message_bytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    seconds_per_byte, alpha = np.polyfit(message_bytes, seconds, 1, w=seconds**-0.5)
    return alpha, 1 / seconds_per_byte


# %% wrong: two_points
# message: Two points are not enough
import numpy as np


def fit(message_bytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    alpha = seconds[0]
    return alpha, message_bytes[-1] / (seconds[-1] - alpha)
