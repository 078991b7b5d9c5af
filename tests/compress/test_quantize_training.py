"""Training through the rounding: the gradient passes, the loss falls below that of rounding after training."""

import torch
import torch.nn.functional as F
from torch import nn

from workshop.compress.quantize import Grid, round_to_nearest
from workshop.compress.quantize_training import RoundedLinear, StraightThrough

GRID = Grid(2, 16)


def test_forward_rounds_and_backward_does_not():
    for grid in (Grid(3, 16), Grid(3, 16, symmetric=False)):
        weight = torch.randn(6, 32, requires_grad=True)
        rounded = StraightThrough.apply(weight, grid)
        torch.testing.assert_close(rounded, round_to_nearest(weight.detach(), grid).dequantize())
        direction = torch.randn(6, 32)
        (rounded * direction).sum().backward()
        passed = weight.grad == direction
        assert passed.float().mean() > 0.9
        assert (weight.grad[~passed] == 0).all()


def test_training_repairs_what_rounding_breaks():
    torch.manual_seed(0)
    linear = nn.Linear(32, 16)
    inputs = torch.randn(256, 8) @ torch.randn(8, 32)
    wanted = linear(inputs).detach()
    layer = RoundedLinear.of(linear, GRID)
    assert layer.weight is linear.weight
    optimizer = torch.optim.Adam(layer.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.01, 150)
    losses = []
    for _ in range(150):
        loss = F.mse_loss(layer(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    torch.testing.assert_close(layer.finish()(inputs), layer(inputs).detach())
