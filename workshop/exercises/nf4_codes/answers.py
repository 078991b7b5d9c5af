# %% other: midpoints
import numpy as np


def nf4_codes(block: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """How many of the fifteen midpoints lie below each weight."""
    absmax = max(block.max(), -block.min())
    midpoints = (values[1:] + values[:-1]) / 2
    return np.searchsorted(midpoints, block / absmax), absmax


# %% wrong: the_largest
# message: That is the largest weight. The largest *absolute* value is larger: a negative one.
import numpy as np


def nf4_codes(block: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """The codes of a block, 0 to 15 for each weight, and its largest absolute value."""
    absmax = block.max()
    codes = np.abs(block[:, None] / absmax - values).argmin(axis=1)
    return codes, absmax


# %% wrong: not_divided
# message: The block is not divided by its absmax: small weights all become code 7.
import numpy as np


def nf4_codes(block: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """The codes of a block, 0 to 15 for each weight, and its largest absolute value."""
    absmax = np.abs(block).max()
    codes = np.abs(block[:, None] - values).argmin(axis=1)
    return codes, absmax


# %% wrong: the_next_below
# message: Those are the next values *below*. The nearest may be the one above.
import numpy as np


def nf4_codes(block: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """The codes of a block, 0 to 15 for each weight, and its largest absolute value."""
    absmax = np.abs(block).max()
    codes = (np.searchsorted(values, block / absmax, side="right") - 1).clip(0, 15)
    return codes, absmax


# %% wrong: codes_alone
# message: the codes and absmax
import numpy as np


def nf4_codes(block: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """The codes of a block, 0 to 15 for each weight, and its largest absolute value."""
    absmax = np.abs(block).max()
    return np.abs(block[:, None] / absmax - values).argmin(axis=1)
