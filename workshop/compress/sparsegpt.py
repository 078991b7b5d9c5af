r"""SparseGPT: prune a matrix, and let what stays make up for what went (Frantar and Alistarh 2023, arXiv
2301.00774).

`compress.hessian` says what it costs to set one weight of a row to zero and what the others then get.
SparseGPT goes through the columns from left to right, with the same inverse for all rows (algorithm 1):

- at the start of every group of columns it chooses what goes there: the lowest w^2 / [H^-1]_jj, in which
  U_jj^2 stands for the corner (its section 3.2). Of each row's four for 2:4, of the whole block otherwise;
- each column's error (w where it goes, 0 where it stays), divided by U_jj, times U's row j is subtracted from
  all columns to the right.

Choosing only when a group's turn comes matters: by then its weights have received what they must make up for.
`prune_matrix_plainly` is that, column by column over the whole rest; `prune_matrix` collects the corrections
of a block of columns and applies them to the rest in one product, as the paper does (section 3.3). Both
agree.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from workshop.compress.hessian import inverse_factor
from workshop.compress.layer_by_layer import layer_by_layer
from workshop.compress.prune import Masks, mask_of

BLOCK = 128


def _goes(weight: Tensor, corners: Tensor, sparsity: float, pattern: str) -> Tensor:
    """True where a weight is to be zero: the cheapest of these columns. weight (rows, columns)."""
    price = (weight / corners).square()
    if pattern == "2:4":  # four columns at a time, thousands of times: the shortest way
        cheapest = price.topk(2, dim=1, largest=False).indices
        return torch.zeros_like(price, dtype=torch.bool).scatter_(1, cheapest, True)
    return ~mask_of(price, sparsity, "layer", pattern)


def prune_matrix_plainly(
    weight: Tensor, hessian: Tensor, sparsity: float = 0.5, pattern: str = "unstructured", block: int = BLOCK
) -> Tensor:
    """The pruned matrix: one column at a time, errors spread over all columns to the right, to be read.

    weight (out, in), hessian (in, in); returns (out, in) in fp32. Zeros are chosen at the start of each
    `block` of columns, for 2:4 of each four.
    """
    weight, factor = weight.detach().float().clone(), inverse_factor(hessian)
    corners, group = factor.diagonal(), 4 if pattern == "2:4" else block
    for column in range(weight.shape[1]):
        if column % group == 0:
            span = slice(column, column + group)
            goes = _goes(weight[:, span], corners[span], sparsity, pattern)
        error = weight[:, column] * goes[:, column % group] / corners[column]
        weight[:, column:] -= torch.outer(error, factor[column, column:])
        weight[:, column] *= ~goes[:, column % group]
    return weight


def prune_matrix(
    weight: Tensor, hessian: Tensor, sparsity: float = 0.5, pattern: str = "unstructured", block: int = BLOCK
) -> Tensor:
    """`prune_matrix_plainly`, with the rest of the matrix corrected once a block. Same result, to rounding.

    ValueError for unknown patterns, 2:4 with a sparsity other than 0.5, and a block that is no multiple of
    four.
    """
    if block % 4 or (pattern == "2:4" and weight.shape[1] % 4):
        raise ValueError(f"{weight.shape[1]} columns in blocks of {block}: both must be whole groups of four")
    if pattern == "2:4" and sparsity != 0.5:
        raise ValueError(f"2:4 is a sparsity of 0.5, not {sparsity}")
    weight, factor = weight.detach().float().clone(), inverse_factor(hessian)
    for first in range(0, weight.shape[1], block):
        span = slice(first, min(first + block, weight.shape[1]))
        part, errors = _prune_block(weight[:, span], factor[span, span], sparsity, pattern)
        weight[:, span] = part
        weight[:, span.stop :] -= errors @ factor[span, span.stop :]
    return weight


def _prune_block(part: Tensor, factor: Tensor, sparsity: float, pattern: str) -> tuple[Tensor, Tensor]:
    """The block without its zeros, and each column's error over its corner, both (rows, columns)."""
    part, corners = part.T.contiguous(), factor.diagonal()  # columns are rows of memory here
    errors, group = torch.zeros_like(part), 4 if pattern == "2:4" else len(part)
    for first in range(0, len(part), group):
        span, behind = slice(first, first + group), slice(first + group, None)
        goes = _goes(part[span].T, corners[span], sparsity, pattern).T
        _prune_group(part[span], factor[span, span], goes, errors[span])
        part[behind].addmm_(factor[span, behind].T, errors[span], alpha=-1)
    return part.T, errors.T


def _prune_group(part: Tensor, factor: Tensor, goes: Tensor, errors: Tensor) -> None:
    """Columns whose zeros are chosen together, in place; `errors` is filled. All (columns, rows)."""
    over_corner = goes / factor.diagonal()[:, None]
    for column in range(len(part)):
        torch.mul(part[column], over_corner[column], out=errors[column])
        part[column + 1 :].addr_(factor[column, column + 1 :], errors[column], alpha=-1)
    part.masked_fill_(goes, 0)


def prune_sparsegpt(
    model: nn.Module, batches: Sequence[Tensor], sparsity: float = 0.5, pattern: str = "unstructured"
) -> Masks:
    """Prune the layers in place, one after another; returns what stayed.

    batches: tokens for calibration, each (batch, seq); a few thousand tokens are better than a few hundred,
    for the Hessian of n inputs needs n of them and more. Errors are those of `layer_by_layer` and
    `prune_matrix`.
    """
    masks: Masks = {}
    for seen in layer_by_layer(model, batches):
        for name, inputs in seen.items():
            weight = inputs.linear.weight
            pruned = prune_matrix(weight, inputs.matrix, sparsity, pattern)
            weight.data.copy_(pruned)
            masks[name] = pruned != 0
    return masks
