# %% other: einsum
import torch


def fp8_backward(dy, x, weight):
    """The scale the other way round, and each sum named."""
    up = 57_344 / dy.abs().max().clamp(min=1e-20)
    rounded = (dy * up).clamp(-57_344, 57_344).to(torch.float8_e5m2).to(dy.dtype) / up
    return torch.einsum("to,oi->ti", rounded, weight), torch.einsum("to,ti->oi", rounded, x)


# %% wrong: not_rounded
# message: dy is not rounded
import torch


def fp8_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """dx and dw of y = x W^T; x and weight were rounded in forward, dy is not yet."""
    dx = dy @ weight
    dw = dy.T @ x
    return dx, dw


# %% wrong: in_e4m3
# message: That is E4M3
import torch


def fp8_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """dx and dw of y = x W^T; x and weight were rounded in forward, dy is not yet."""
    scale = dy.abs().amax() / torch.finfo(torch.float8_e4m3fn).max
    dy = (dy / scale).to(torch.float8_e4m3fn).float() * scale
    dx = dy @ weight
    dw = dy.T @ x
    return dx, dw


# %% wrong: without_scale
# message: without a scale
import torch


def fp8_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """dx and dw of y = x W^T; x and weight were rounded in forward, dy is not yet."""
    dy = dy.to(torch.float8_e5m2).float()
    dx = dy @ weight
    dw = dy.T @ x
    return dx, dw


# %% wrong: scale_kept
# message: multiplied by the scale again
import torch


def fp8_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """dx and dw of y = x W^T; x and weight were rounded in forward, dy is not yet."""
    scale = dy.abs().amax() / torch.finfo(torch.float8_e5m2).max
    dy = (dy / scale).to(torch.float8_e5m2).float()
    dx = dy @ weight
    dw = dy.T @ x
    return dx, dw


# %% wrong: by_row
# message: a scale for each row
import torch


def fp8_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """dx and dw of y = x W^T; x and weight were rounded in forward, dy is not yet."""
    scale = dy.abs().amax(1, keepdim=True) / torch.finfo(torch.float8_e5m2).max
    dy = (dy / scale).to(torch.float8_e5m2).float() * scale
    dx = dy @ weight
    dw = dy.T @ x
    return dx, dw


# %% wrong: only_in_dgrad
# message: wgrad reads dy as it came
import torch


def fp8_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """dx and dw of y = x W^T; x and weight were rounded in forward, dy is not yet."""
    scale = dy.abs().amax() / torch.finfo(torch.float8_e5m2).max
    rounded = (dy / scale).to(torch.float8_e5m2).float() * scale
    dx = rounded @ weight
    dw = dy.T @ x
    return dx, dw


# %% wrong: the_other_order
# message: shape (5, 8)
import torch


def fp8_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """dx and dw of y = x W^T; x and weight were rounded in forward, dy is not yet."""
    scale = dy.abs().amax() / torch.finfo(torch.float8_e5m2).max
    dy = (dy / scale).to(torch.float8_e5m2).float() * scale
    dx = dy @ weight
    dw = x.T @ dy
    return dx, dw


# %% wrong: to_448
# message: 448 is where E4M3 ends
import torch


def fp8_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """dx and dw of y = x W^T; x and weight were rounded in forward, dy is not yet."""
    scale = dy.abs().amax() / 448
    dy = (dy / scale).to(torch.float8_e5m2).float() * scale
    dx = dy @ weight
    dw = dy.T @ x
    return dx, dw


# %% wrong: signed
# message: A large negative gradient
import torch


def fp8_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """dx and dw of y = x W^T; x and weight were rounded in forward, dy is not yet."""
    scale = dy.amax() / torch.finfo(torch.float8_e5m2).max
    dy = (dy / scale).to(torch.float8_e5m2).float() * scale
    dx = dy @ weight
    dw = dy.T @ x
    return dx, dw


# %% wrong: zero_over_zero
# message: 0 / 0 is NaN
import torch


def fp8_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """dx and dw of y = x W^T; x and weight were rounded in forward, dy is not yet."""
    scale = dy.abs().amax() / torch.finfo(torch.float8_e5m2).max
    dy = (dy / scale).to(torch.float8_e5m2).float() * scale
    dx = dy @ weight
    dw = dy.T @ x
    return dx, dw
