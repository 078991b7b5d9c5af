# %% other: every_nth_column
import numpy as np


def columns_first(x, a, b, ranks):
    columns = np.arange(a.shape[1]) % ranks
    return tuple(
        np.where(x @ a[:, columns == r] > 0, x @ a[:, columns == r], 0) @ b[columns == r]
        for r in range(ranks)
    )


# %% wrong: rows_first
# message: a sum of ReLUs
import numpy as np


def columns_first(x, a, b, ranks):
    pieces = zip(np.split(x, ranks, 1), np.split(a, ranks, 0), strict=True)
    return [np.maximum(x_part @ a_part, 0) @ b for x_part, a_part in pieces]


# %% wrong: no_relu
# message: the ReLU plays no part
def columns_first(x, a, b, ranks):
    """Each rank's part of relu(x @ a) @ b; a (inputs, width), b (width, outputs)."""
    parts = []
    width = a.shape[1] // ranks
    for rank in range(ranks):
        a_part = a[:, rank * width : (rank + 1) * width]
        b_part = b[rank * width : (rank + 1) * width]
        parts.append(x @ a_part @ b_part)
    return parts


# %% wrong: everybody_does_everything
# message: every rank did all of it
import numpy as np


def columns_first(x, a, b, ranks):
    """Each rank's part of relu(x @ a) @ b; a (inputs, width), b (width, outputs)."""
    parts = []
    for _ in range(ranks):
        a_part = a
        b_part = b
        parts.append(np.maximum(x @ a_part, 0) @ b_part)
    return parts


# %% wrong: everybody_does_all_and_divides
# message: 2 ranks used the last column of a
import numpy as np


def columns_first(x, a, b, ranks):
    """Each rank's part of relu(x @ a) @ b; a (inputs, width), b (width, outputs)."""
    parts = []
    for _ in range(ranks):
        a_part = a
        b_part = b / ranks
        parts.append(np.maximum(x @ a_part, 0) @ b_part)
    return parts


# %% wrong: rank_0_does_it_all
# message: rank 0 used 2 of the 2 columns
import numpy as np


def columns_first(x, a, b, ranks):
    """Each rank's part of relu(x @ a) @ b; a (inputs, width), b (width, outputs)."""
    whole = np.maximum(x @ a, 0) @ b
    return [whole] + [0 * whole] * (ranks - 1)


# %% wrong: other_rows
# message: Which rows of b
import numpy as np


def columns_first(x, a, b, ranks):
    """Each rank's part of relu(x @ a) @ b; a (inputs, width), b (width, outputs)."""
    parts = []
    width = a.shape[1] // ranks
    for rank in range(ranks):
        a_part = a[:, rank * width : (rank + 1) * width]
        b_part = b[rank::ranks]
        parts.append(np.maximum(x @ a_part, 0) @ b_part)
    return parts
