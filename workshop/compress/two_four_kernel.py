r"""2:4 as it is stored, and the kernel that can use it.

`pack` is the format by hand (Mishra et al. 2021, arXiv 2104.08378, figure 2): of each four weights the two
that stay, and for each of them 2 bits that say where it was, four such in a byte::

    0.9  0  0  -0.4     ->     0.9  -0.4      places 0 and 3 = 00 and 11

A GPU's sparse tensor cores (Ampere and later) read that, pick the inputs that belong to the two values, and
do half of the products. PyTorch calls it semi-structured: `use_sparse_kernels` swaps the weights of a pruned
model for such tensors. It needs CUDA. A CPU has no such kernel: there a 2:4 model runs as any dense one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from workshop.compress.layer_by_layer import linears


class Packed(NamedTuple):
    """A 2:4 matrix of (out, in): values (out, in / 2), and places, uint8 of (out, in / 8), four places a
    byte.
    """

    values: Tensor
    places: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.values.nbytes + self.places.nbytes


def pack(weight: Tensor) -> Packed:
    """The two values of each four and their places; where fewer are nonzero, zeros fill up.

    ``weight`` (out, in), in a multiple of eight. ValueError where a group of four has more than two nonzero.
    """
    if weight.shape[-1] % 8:
        raise ValueError(f"{weight.shape[-1]} inputs: two groups of four fill a byte of places, so take 8 n")
    groups = weight.detach().unflatten(-1, (-1, 4))
    is_kept = groups != 0
    if bool((is_kept.sum(-1) > 2).any()):
        raise ValueError("some four have more than two nonzero weights: prune with pattern '2:4' first")
    # nonzero first, each kind in its order; then the first two, from left to right
    order = is_kept.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :2].sort(-1).values
    values = groups.gather(-1, order).flatten(-2)
    bits = torch.tensor([0, 2, 4, 6], device=weight.device)
    places = (order.flatten(-2).unflatten(-1, (-1, 4)) << bits).sum(-1).to(torch.uint8)
    return Packed(values, places)


def unpack(packed: Packed) -> Tensor:
    """The matrix again, (out, in)."""
    bits = torch.tensor([0, 2, 4, 6], device=packed.places.device)
    places = ((packed.places.unsqueeze(-1).long() >> bits) & 3).flatten(-2)
    groups = packed.values.new_zeros(*places.shape[:-1], places.shape[-1] // 2, 4)
    groups.scatter_(-1, places.unflatten(-1, (-1, 2)), packed.values.unflatten(-1, (-1, 2)))
    return groups.flatten(-2)


def use_sparse_kernels(model: nn.Module) -> nn.Module:
    """Swap the layers' weights for semi-structured tensors, in place, for inference. On CUDA, in 16 bits.

    Tried on an H200 with torch 2.11: the outputs are those of the dense kernel. Raises ValueError where the
    model is not on CUDA, and for weights that are not 2:4.
    """
    for name, linear in linears(model).items():
        weight = linear.weight
        if weight.device.type != "cuda":
            raise ValueError(
                f"{name} is on {weight.device.type}, and only CUDA has kernels for 2:4 (Ampere and later): "
                "move the model there, or leave it dense: the zeros give the same outputs, and save no time"
            )
        if bool(((weight != 0).unflatten(-1, (-1, 4)).sum(-1) > 2).any()):
            raise ValueError(f"{name} is not 2:4: prune it with pattern '2:4' first")
        sparse = torch.sparse.to_sparse_semi_structured(weight.detach())
        linear.weight = nn.Parameter(sparse, requires_grad=False)
    return model
