# %% other: by_inverse
import numpy as np


def gptq_column(weight, hessian, j, nearest):
    moved = weight.copy()
    inverse = np.linalg.inv(hessian[j:, j:])
    error = (weight[:, j] - nearest(weight[:, j])) / inverse[0, 0]
    for k in range(j + 1, weight.shape[1]):
        moved[:, k] -= error * inverse[0, k - j]
    moved[:, j] = nearest(weight[:, j])
    return moved


# %% wrong: the_other_way
# message: the other way
import numpy as np


def gptq_column(weight, hessian, j, nearest):
    """The matrix with column j rounded, and the later ones making up for it."""
    moved, later = weight.copy(), slice(j + 1, None)
    moved[:, j] = nearest(weight[:, j])
    added = moved[:, j] - weight[:, j]  # the change, one number per row
    move = np.linalg.solve(hessian[later, later], np.outer(hessian[later, j], added)).T
    moved[:, later] += move
    return moved


# %% wrong: each_alone
# message: as if it were alone
import numpy as np


def gptq_column(weight, hessian, j, nearest):
    """The matrix with column j rounded, and the later ones making up for it."""
    moved, later = weight.copy(), slice(j + 1, None)
    moved[:, j] = nearest(weight[:, j])
    added = moved[:, j] - weight[:, j]  # the change, one number per row
    move = -np.outer(added, hessian[j, later] / np.diag(hessian)[later])
    moved[:, later] += move
    return moved


# %% wrong: all_of_hessian
# message: columns before j moved too
import numpy as np


def gptq_column(weight, hessian, j, nearest):
    """The matrix with column j rounded, and the later ones making up for it."""
    moved, later = weight.copy(), slice(j + 1, None)
    moved[:, j] = nearest(weight[:, j])
    added = moved[:, j] - weight[:, j]  # the change, one number per row
    inverse = np.linalg.inv(hessian)
    move = np.outer(added, inverse[j, later] / inverse[j, j])
    moved[:, later] += move
    return moved


# %% wrong: only_rounds
# message: that is rounding to nearest
def gptq_column(weight, hessian, j, nearest):
    """The matrix after column j has been rounded."""
    moved = weight.copy()
    moved[:, j] = nearest(weight[:, j])
    return moved


# %% wrong: moves_all_columns
# message: must stay on the grid
import numpy as np


def gptq_column(weight, hessian, j, nearest):
    """The matrix with column j rounded, and all others making up for it."""
    moved = weight.copy()
    moved[:, j] = nearest(weight[:, j])
    added = moved[:, j] - weight[:, j]
    inverse = np.linalg.inv(hessian)
    return weight + np.outer(added, inverse[j] / inverse[j, j])


# %% wrong: leaves_the_column_unrounded
# message: it must stay so
import numpy as np


def gptq_column(weight, hessian, j, nearest):
    """The matrix with column j rounded, and the later ones making up for it."""
    moved, later = weight.copy(), slice(j + 1, None)
    moved[:, j] = nearest(weight[:, j])
    added = moved[:, j] - weight[:, j]  # the change, one number per row
    move = -np.linalg.solve(hessian[later, later], np.outer(hessian[later, j], added)).T
    moved[:, later] += move
    moved[:, j] = weight[:, j]
    return moved


# %% wrong: rounds_a_matrix_of_one_column
# message: give it the column
import numpy as np


def gptq_column(weight, hessian, j, nearest):
    """The matrix with column j rounded, and the later ones making up for it."""
    moved, later = weight.copy(), slice(j + 1, None)
    moved[:, [j]] = nearest(weight[:, [j]])
    added = moved[:, j] - weight[:, j]  # the change, one number per row
    move = -np.linalg.solve(hessian[later, later], np.outer(hessian[later, j], added)).T
    moved[:, later] += move
    return moved
