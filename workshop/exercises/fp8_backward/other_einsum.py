import torch


def fp8_backward(dy, x, weight):
    """The scale the other way round, and each sum named."""
    up = 57_344 / dy.abs().max().clamp(min=1e-20)
    rounded = (dy * up).clamp(-57_344, 57_344).to(torch.float8_e5m2).to(dy.dtype) / up
    return torch.einsum("to,oi->ti", rounded, weight), torch.einsum("to,ti->oi", rounded, x)
