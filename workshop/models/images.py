"""Pixels as a vision model takes them: numbers around zero, at the side that the model wants.

A CoAtNet halves an image five times, so its side is a multiple of 32, and a dataset of 28 x 28 does not ask.
Nothing is invented in between: pixels are repeated, and what is left over is filled with the background.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def to_images(pixels: Any, side: int) -> Tensor:
    """uint8 (N, s, s), black 0 to white 255, to float (N, 1, side, side) from -1 to 1.

    Each pixel becomes a square of ``side // s``; black frames what is missing. Raises ValueError for images
    that are larger than the side.
    """
    x = torch.as_tensor(pixels)[:, None].float() / 127.5 - 1
    given = x.shape[-1]
    if given > side:
        raise ValueError(f"images of side {given} do not fit side {side}: give a spec a larger image_size")
    times = side // given
    x = x.repeat_interleave(times, 2).repeat_interleave(times, 3)
    missing = side - times * given
    before, after = missing // 2, missing - missing // 2
    return F.pad(x, (before, after, before, after), value=-1.0)
