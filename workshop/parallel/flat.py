"""Many small tensors as one flat one: how a module's parameters travel, and how they are cut evenly.

A collective has a price for its start (see lesson 21), so a layer's parameters go together. Put end to end
and padded to a multiple of the number of ranks, they are cut into equal parts without a look at their shapes:
a part may end in the middle of a matrix. FSDP1 and DeepSpeed's stages 1 and 2 do so; FSDP2 cuts each
parameter along its first dimension instead and copies into a flat tensor for the journey.
"""

from __future__ import annotations

from itertools import accumulate

import torch.distributed as dist
from torch import Tensor, nn

# torch 2.13 has new names for the same two collectives and warns at the old ones; 2.11 knows only those.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""``all_gather(whole, part)``: every rank gets all parts, one after the other."""
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""``reduce_scatter(part, whole)``: every rank gets one part of the sum over ranks."""


class Unit:
    """The parameters of one module, end to end in one flat tensor, and what belongs to them.

    weights   flat, in the parameters' own type; the parameters are views of it
    gradient  flat, the same length; None while there is none
    reduced   the mean over ranks, or this rank's part of it; None before
    master    the fp32 numbers that the optimizer updates: all, or this rank's part
    shard     stage 3: the part of the weights that stays; then `weights` has bytes for moments only
    """

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter]) -> None:
        self.module, self.parameters = module, parameters
        sizes = [parameter.numel() for parameter in parameters]
        self.ends = list(accumulate(sizes))
        self.starts = [end - size for end, size in zip(self.ends, sizes, strict=True)]
        self.shapes = [parameter.shape for parameter in parameters]
        ranks = dist.get_world_size()
        length = -(-self.ends[-1] // ranks) * ranks  # so that it divides
        self.weights = parameters[0].detach().new_zeros(length)
        for parameter, piece in zip(parameters, self.pieces(self.weights), strict=True):
            piece.copy_(parameter.detach())
            parameter.data = piece
        self.gradient: Tensor | None = None
        self.places: list[Tensor] = []  # the gradient, cut into pieces
        self.missing = len(parameters)  # gradients that this backward has still to bring
        self.reduced: Tensor | None = None
        self.master: nn.Parameter = nn.Parameter(self.weights)
        self.shard: Tensor = self.weights
        self.is_whole, self.in_backward = True, False

    def pieces(self, flat: Tensor) -> list[Tensor]:
        """A flat tensor of the whole unit as views in the parameters' shapes."""
        cut = zip(self.starts, self.ends, self.shapes, strict=True)
        return [flat[start:end].view(shape) for start, end, shape in cut]
