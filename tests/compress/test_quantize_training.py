"""Training through the rounding: the gradient passes, the loss falls below that of rounding after training."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from workshop.compress.quantize import Grid, round_to_nearest
from workshop.compress.quantize_training import RoundedLinear, StraightThrough

GRID = Grid(2, 16)
ROOT = Path(__file__).parents[2]


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


def test_what_lesson_53_says_of_chance():
    """Its numbers are those of `benchmarks/trained_rounding.py`: three runs with moved weights, one without."""
    kept = json.loads((ROOT / "data" / "measurements" / "trained_rounding.json").read_text("utf-8"))
    moved = [run for run in kept["runs"] if run["seed"] is not None]
    assert len(moved) == 3
    trained, gptq, more = (
        sorted(run[name] for run in moved) for name in ("int3 trained", "int3 GPTQ", "int3 GPTQ, more")
    )
    (lesson,) = (ROOT / "notebooks" / "source").rglob("53_quantization.py")
    text = " ".join(lesson.read_text("utf-8").replace("\n# ", " ").split())
    assert (
        f"Training then gave {trained[0]:.1f} to {trained[-1]:.1f}, and GPTQ {gptq[0]:.1f} to {gptq[-1]:.1f}."
        in text
    )
    for run in kept["runs"]:
        assert run["int3 trained"] < run["int3 GPTQ, more"] < run["int3 GPTQ"] < run["int3 rtn"]
    least = min(moved, key=lambda run: run["int3 GPTQ, more"] / run["int3 trained"])
    assert f"({least['int3 trained']:.1f} and {least['int3 GPTQ, more']:.1f})" in text
    assert 0.004 < least["int3 GPTQ, more"] / least["int3 trained"] - 1 < 0.006
    assert more[-1] / more[0] - 1 > 0.03  # what chance changes
