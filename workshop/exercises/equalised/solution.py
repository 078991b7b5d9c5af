import torch

A, B, C = 3.4445, -4.7750, 2.0315


def equalised(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with all its singular values brought near 1."""
    near = matrix.bfloat16() / matrix.norm()
    for _ in range(5):
        square = near @ near.mT
        near = A * near + (B * square + C * square @ square) @ near
    return near.to(matrix.dtype)
