"""The bits of torch's own numbers, to be held against ours."""

import torch
from torch import Tensor

_CONTAINERS = {8: torch.uint8, 16: torch.int16, 32: torch.int32}


def bits_of(x: Tensor) -> Tensor:
    """The bits of a tensor of 8, 16 or 32 bits an element, as int64, none negative."""
    width = 8 * x.element_size()
    return x.contiguous().view(_CONTAINERS[width]).long() & (2**width - 1)
