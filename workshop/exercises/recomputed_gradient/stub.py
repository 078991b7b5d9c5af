import torch


def recomputed_gradient(layer, x, gradient):
    """The gradient of x, from that of the output; the weights fill their .grad."""
    x = x.detach().requires_grad_()  # a fresh start: what came before is not recorded
    ...
    return ...
