# %% other: autograd
import torch
import torch.distributed as dist


def row_parallel_backward(gradient_y, h, b):
    with torch.enable_grad():
        h, b = h.detach().requires_grad_(), b.detach().requires_grad_()
        return torch.autograd.grad(h @ b, (h, b), gradient_y)


def column_parallel_backward(gradient_z, x, a):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.einsum("bz,xz->bx", gradient_z, a))
    return sum(parts), torch.einsum("bx,bz->xz", x, gradient_z)


# %% wrong: forgets_the_sum
# message: this rank's part alone
import torch


def row_parallel_backward(gradient_y: torch.Tensor, h: torch.Tensor, b: torch.Tensor):
    """From the gradient of y, the sum over ranks of h @ b: the gradients of h and b."""
    gradient_h = gradient_y @ b.T
    gradient_b = h.T @ gradient_y
    return gradient_h, gradient_b


def column_parallel_backward(gradient_z: torch.Tensor, x: torch.Tensor, a: torch.Tensor):
    """Gradients of x, which all ranks used, and of a, from that of z = x @ a."""
    gradient_x = gradient_z @ a.T
    gradient_a = x.T @ gradient_z
    return gradient_x, gradient_a


# %% wrong: the_mean
# message: That is the mean
import torch
import torch.distributed as dist


def row_parallel_backward(gradient_y: torch.Tensor, h: torch.Tensor, b: torch.Tensor):
    """From the gradient of y, the sum over ranks of h @ b: the gradients of h and b."""
    gradient_h = gradient_y @ b.T
    gradient_b = h.T @ gradient_y
    return gradient_h, gradient_b


def column_parallel_backward(gradient_z: torch.Tensor, x: torch.Tensor, a: torch.Tensor):
    """Gradients of x, which all ranks used, and of a, from that of z = x @ a."""
    gradient_x = gradient_z @ a.T
    dist.all_reduce(gradient_x)
    gradient_x /= dist.get_world_size()
    gradient_a = x.T @ gradient_z
    return gradient_x, gradient_a


# %% wrong: sums_in_both
# message: has different activations
import torch
import torch.distributed as dist


def row_parallel_backward(gradient_y: torch.Tensor, h: torch.Tensor, b: torch.Tensor):
    """From the gradient of y, the sum over ranks of h @ b: the gradients of h and b."""
    gradient_h = gradient_y @ b.T
    dist.all_reduce(gradient_h)
    gradient_b = h.T @ gradient_y
    return gradient_h, gradient_b


def column_parallel_backward(gradient_z: torch.Tensor, x: torch.Tensor, a: torch.Tensor):
    """Gradients of x, which all ranks used, and of a, from that of z = x @ a."""
    gradient_x = gradient_z @ a.T
    dist.all_reduce(gradient_x)
    gradient_a = x.T @ gradient_z
    return gradient_x, gradient_a


# %% wrong: sums_the_gradient_of_y
# message: already whole on every rank
import torch
import torch.distributed as dist


def row_parallel_backward(gradient_y: torch.Tensor, h: torch.Tensor, b: torch.Tensor):
    """From the gradient of y, the sum over ranks of h @ b: the gradients of h and b."""
    gradient_y = gradient_y.clone()
    dist.all_reduce(gradient_y)
    gradient_h = gradient_y @ b.T
    gradient_b = h.T @ gradient_y
    return gradient_h, gradient_b


def column_parallel_backward(gradient_z: torch.Tensor, x: torch.Tensor, a: torch.Tensor):
    """Gradients of x, which all ranks used, and of a, from that of z = x @ a."""
    gradient_x = gradient_z @ a.T
    dist.all_reduce(gradient_x)
    gradient_a = x.T @ gradient_z
    return gradient_x, gradient_a


# %% wrong: sums_the_weights_gradients
# message: has different weights
import torch
import torch.distributed as dist


def row_parallel_backward(gradient_y: torch.Tensor, h: torch.Tensor, b: torch.Tensor):
    """From the gradient of y, the sum over ranks of h @ b: the gradients of h and b."""
    gradient_h = gradient_y @ b.T
    gradient_b = h.T @ gradient_y
    return gradient_h, gradient_b


def column_parallel_backward(gradient_z: torch.Tensor, x: torch.Tensor, a: torch.Tensor):
    """Gradients of x, which all ranks used, and of a, from that of z = x @ a."""
    gradient_x = gradient_z @ a.T
    dist.all_reduce(gradient_x)
    gradient_a = x.T @ gradient_z
    dist.all_reduce(gradient_a)
    return gradient_x, gradient_a
