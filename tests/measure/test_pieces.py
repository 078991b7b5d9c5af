"""Pieces are timed alone, one after the other, with a backward of their own."""

import time

import pytest
import torch
from torch import nn

from workshop.measure.pieces import seconds_of_optimizer, seconds_of_pieces


class Sleeps(nn.Module):
    """Takes so long forward."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.weight = seconds, nn.Parameter(torch.ones(3))

    def forward(self, x):
        time.sleep(self.seconds)
        return x * self.weight


def test_each_piece_has_its_own_time():
    pieces = [Sleeps(0.02), Sleeps(0.06)]
    found = seconds_of_pieces(pieces, torch.ones(2, 3), repeats=2)
    assert [forward >= least for (forward, _), least in zip(found, (0.02, 0.06), strict=True)] == [True, True]
    assert all(backward < 0.06 for _, backward in found)
    assert all(piece.weight.grad is not None for piece in pieces)


def test_seconds_of_a_step_are_for_each_parameter():
    model = nn.Linear(100, 100)
    model(torch.ones(1, 100)).sum().backward()
    found = seconds_of_optimizer(model, torch.optim.AdamW(model.parameters()))
    assert 0 < found * 10_100 < 1


def test_no_repeat_is_refused():
    with pytest.raises(ValueError, match="repeats is 0"):
        seconds_of_pieces([], torch.ones(1), repeats=0)
