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
