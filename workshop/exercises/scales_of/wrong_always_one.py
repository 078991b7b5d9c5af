import torch


def scales_of(x: torch.Tensor, share: str, largest: float) -> torch.Tensor:
    """What to divide a matrix (rows, columns) by; it broadcasts against x.

    share: "tensor" for one scale, "row" for one per row, "column" for one per column.
    """
    amax = x.abs().max()
    return torch.where(amax > 0, amax / largest, 1.0)
