# %% other: by_a_sum
import torch


def recomputed_gradient(layer, x, gradient):
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        (layer(x) * gradient).sum().backward()
    return x.grad


# %% other: autograd_backward
import torch


def recomputed_gradient(layer, x, gradient):
    start = x.detach().clone().requires_grad_(True)
    torch.set_grad_enabled(True)
    again = layer(start)
    torch.set_grad_enabled(False)
    torch.autograd.backward(again, gradient)
    return start.grad


# %% wrong: nothing_recorded
# message: The second forward was not recorded
import torch


def recomputed_gradient(layer, x, gradient):
    """The gradient of x, from that of the output; the weights fill their .grad."""
    x = x.detach().requires_grad_()  # a fresh start: what came before is not recorded
    again = layer(x)
    again.backward(gradient)
    return x.grad


# %% wrong: gives_the_output
# message: That is the output of the layer
import torch


def recomputed_gradient(layer, x, gradient):
    """The gradient of x, from that of the output; the weights fill their .grad."""
    x = x.detach().requires_grad_()  # a fresh start: what came before is not recorded
    with torch.enable_grad():
        again = layer(x)
    again.backward(gradient)
    return again.detach()


# %% wrong: loses_the_gradient
# message: `gradient` is lost
import torch


def recomputed_gradient(layer, x, gradient):
    """The gradient of x, from that of the output; the weights fill their .grad."""
    x = x.detach().requires_grad_()  # a fresh start: what came before is not recorded
    with torch.enable_grad():
        again = layer(x)
        again.sum().backward()
    return x.grad


# %% wrong: weights_get_none
# message: the layer's weights got none
import torch


def recomputed_gradient(layer, x, gradient):
    """The gradient of x, from that of the output; the weights fill their .grad."""
    x = x.detach().requires_grad_()  # a fresh start: what came before is not recorded
    with torch.enable_grad():
        again = layer(x)
    return torch.autograd.grad(again, x, gradient)[0]


# %% wrong: forgets_what_was_there
# message: New ones add to them
import torch


def recomputed_gradient(layer, x, gradient):
    """The gradient of x, from that of the output; the weights fill their .grad."""
    x = x.detach().requires_grad_()  # a fresh start: what came before is not recorded
    layer.zero_grad()
    with torch.enable_grad():
        again = layer(x)
    again.backward(gradient)
    return x.grad
