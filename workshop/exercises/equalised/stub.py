import torch

A, B, C = 3.4445, -4.7750, 2.0315


def equalised(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with all its singular values brought near 1."""
    near = ...
    for _ in range(5):
        near = ...  # each singular value s becomes A s + B s^3 + C s^5
    return near.to(matrix.dtype)
