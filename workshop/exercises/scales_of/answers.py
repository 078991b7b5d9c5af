# %% other: by_cases
def scales_of(x, share, largest):
    size = x.abs()
    if share == "row":
        amax = size.max(dim=1).values[:, None]
    elif share == "column":
        amax = size.max(dim=0).values[None]
    else:
        amax = size.max()
    return (amax / largest).masked_fill(amax == 0, 1.0)


# %% wrong: rows_for_columns
# message: for each column
import torch


def scales_of(x: torch.Tensor, share: str, largest: float) -> torch.Tensor:
    """What to divide a matrix (rows, columns) by; it broadcasts against x.

    share: "tensor" for one scale, "row" for one per row, "column" for one per column.
    """
    dims = {"tensor": (0, 1), "row": (0,), "column": (1,)}[share]
    amax = x.abs().amax(dims, keepdim=True)
    return torch.where(amax > 0, amax / largest, 1.0)


# %% wrong: without_magnitude
# message: A large negative number is large too
import torch


def scales_of(x: torch.Tensor, share: str, largest: float) -> torch.Tensor:
    """What to divide a matrix (rows, columns) by; it broadcasts against x.

    share: "tensor" for one scale, "row" for one per row, "column" for one per column.
    """
    dims = {"tensor": (0, 1), "row": (1,), "column": (0,)}[share]
    amax = x.amax(dims, keepdim=True)
    return torch.where(amax > 0, amax / largest, 1.0)


# %% wrong: upside_down
# message: upside down
import torch


def scales_of(x: torch.Tensor, share: str, largest: float) -> torch.Tensor:
    """What to divide a matrix (rows, columns) by; it broadcasts against x.

    share: "tensor" for one scale, "row" for one per row, "column" for one per column.
    """
    dims = {"tensor": (0, 1), "row": (1,), "column": (0,)}[share]
    amax = x.abs().amax(dims, keepdim=True)
    return torch.where(amax > 0, largest / amax, 1.0)


# %% wrong: zero_scale
# message: divides zero by zero
import torch


def scales_of(x: torch.Tensor, share: str, largest: float) -> torch.Tensor:
    """What to divide a matrix (rows, columns) by; it broadcasts against x.

    share: "tensor" for one scale, "row" for one per row, "column" for one per column.
    """
    dims = {"tensor": (0, 1), "row": (1,), "column": (0,)}[share]
    amax = x.abs().amax(dims, keepdim=True)
    return amax / largest


# %% wrong: no_broadcast
# message: does not broadcast
import torch


def scales_of(x: torch.Tensor, share: str, largest: float) -> torch.Tensor:
    """What to divide a matrix (rows, columns) by; it broadcasts against x.

    share: "tensor" for one scale, "row" for one per row, "column" for one per column.
    """
    dims = {"tensor": (0, 1), "row": (1,), "column": (0,)}[share]
    amax = x.abs().amax(dims)
    return torch.where(amax > 0, amax / largest, 1.0)


# %% wrong: always_one
# message: one scale for all of it
import torch


def scales_of(x: torch.Tensor, share: str, largest: float) -> torch.Tensor:
    """What to divide a matrix (rows, columns) by; it broadcasts against x.

    share: "tensor" for one scale, "row" for one per row, "column" for one per column.
    """
    amax = x.abs().max()
    return torch.where(amax > 0, amax / largest, 1.0)
