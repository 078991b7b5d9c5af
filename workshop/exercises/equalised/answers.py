# %% other: from_the_right
def equalised(matrix):
    near = matrix / matrix.norm()
    for _ in range(5):
        cubed = near @ (near.T @ near)
        near = 3.4445 * near - 4.7750 * cubed + 2.0315 * cubed @ (near.T @ near)
    return near


# %% other: by_decomposition
import torch


def equalised(matrix):
    left, values, right = torch.linalg.svd(matrix / matrix.norm(), full_matrices=False)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left * values @ right


# %% wrong: forgets_the_norm
# message: Was the matrix divided by its norm
import torch

A, B, C = 3.4445, -4.7750, 2.0315


def equalised(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with all its singular values brought near 1."""
    near = matrix.bfloat16()
    for _ in range(5):
        square = near @ near.mT
        near = A * near + (B * square + C * square @ square) @ near
    return near.to(matrix.dtype)


# %% wrong: powers_of_the_numbers
# message: those are powers of its numbers
import torch

A, B, C = 3.4445, -4.7750, 2.0315


def equalised(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with all its singular values brought near 1."""
    near = matrix.bfloat16() / matrix.norm()
    for _ in range(5):
        near = A * near + B * near**3 + C * near**5
    return near.to(matrix.dtype)


# %% wrong: one_round
# message: what one round gives
import torch

A, B, C = 3.4445, -4.7750, 2.0315


def equalised(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with all its singular values brought near 1."""
    near = matrix.bfloat16() / matrix.norm()
    for _ in range(1):
        square = near @ near.mT
        near = A * near + (B * square + C * square @ square) @ near
    return near.to(matrix.dtype)


# %% wrong: six_rounds
# message: what six rounds give
import torch

A, B, C = 3.4445, -4.7750, 2.0315


def equalised(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with all its singular values brought near 1."""
    near = matrix.bfloat16() / matrix.norm()
    for _ in range(6):
        square = near @ near.mT
        near = A * near + (B * square + C * square @ square) @ near
    return near.to(matrix.dtype)


# %% wrong: even_powers
# message: s^2 and s^4
import torch

A, B, C = 3.4445, -4.7750, 2.0315


def equalised(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with all its singular values brought near 1."""
    near = matrix.bfloat16() / matrix.norm()
    for _ in range(5):
        square = near @ near.mT
        near = A * near + B * square + C * square @ square
    return near.to(matrix.dtype)


# %% wrong: exact
# message: The singular values are all exactly 1
import torch

A, B, C = 3.4445, -4.7750, 2.0315


def equalised(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with all its singular values brought near 1."""
    near = matrix
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    near = left @ right
    return near.to(matrix.dtype)


# %% wrong: the_largest_number
# message: by another number than `matrix.norm()`
import torch

A, B, C = 3.4445, -4.7750, 2.0315


def equalised(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with all its singular values brought near 1."""
    near = matrix / torch.linalg.svdvals(matrix).max()
    for _ in range(5):
        square = near @ near.mT
        near = A * near + (B * square + C * square @ square) @ near
    return near.to(matrix.dtype)


# %% wrong: stays_in_bf16
# message: wanted (12, 5), torch.float32
import torch

A, B, C = 3.4445, -4.7750, 2.0315


def equalised(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with all its singular values brought near 1."""
    near = matrix.bfloat16() / matrix.norm()
    for _ in range(5):
        square = near @ near.mT
        near = A * near + (B * square + C * square @ square) @ near
    return near


# %% wrong: seven_rounds
# message: what seven rounds give
import torch

A, B, C = 3.4445, -4.7750, 2.0315


def equalised(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with all its singular values brought near 1."""
    near = matrix.bfloat16() / matrix.norm()
    for _ in range(7):
        square = near @ near.mT
        near = A * near + (B * square + C * square @ square) @ near
    return near.to(matrix.dtype)
