r"""Pruning: which weights to set to zero, and what that saves.

A method is three choices, and each is one function here.

1. **A score** for every weight; the lowest go. `magnitude`: |w| (Han et al. 2015, arXiv 1506.02626). `wanda`:
   |w| times the norm of what comes in at that place, S_ij = |W_ij| ||X_j|| (Sun et al. 2023, arXiv
   2306.11695, equation 1). A small weight on a loud input moves the output more than a large one on a silent
   input.
2. **Whom it is compared with**: all weights of the model (`global`), those of its matrix (`layer`), or those
   of its output (`row`, which Wanda needs: an output's weights add up to one number, those of different
   outputs do not meet).
3. **A pattern.** `unstructured` zeros may lie anywhere. A kernel for matrices does not notice them: it
   multiplies by zero as fast as by seven. `2:4` keeps two of every four neighbours along the inputs, so that
   a kernel knows that half of each row is gone and needs two bits for where (Mishra et al. 2021, arXiv
   2104.08378, section 3.1). Whole rows and columns give a smaller dense matrix, faster everywhere: see
   `compress.prune_structured`.

`compress.sparsegpt` adds a fourth choice: the weights that stay make up for those that went.
`compress.lottery` trains, prunes, and goes back to the weights of the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from workshop.compress.layer_by_layer import layer_by_layer, linears
from workshop.facts.checks import check_choice

SCOPES = ("row", "layer", "global")
PATTERNS = ("unstructured", "2:4")
Masks = dict[str, Tensor]

# -- scores --------------------------------------------------------------------------------------------------


def magnitude(weight: Tensor) -> Tensor:
    """|w|, in fp32 and in the shape of ``weight``."""
    return weight.detach().float().abs()


def wanda(weight: Tensor, input_norms: Tensor) -> Tensor:
    """|W_ij| ||X_j|| (arXiv 2306.11695, equation 1). ``weight`` (out, in), ``input_norms`` (in,).

    A common factor of all norms changes no choice, so root mean squares do as well. ValueError where the
    norms are not one for each input.
    """
    if input_norms.shape != weight.shape[1:]:
        raise ValueError(
            f"{tuple(input_norms.shape)} norms for a weight of {tuple(weight.shape)}: one for each input "
            "(a column of the weight as PyTorch stores it)"
        )
    return weight.detach().float().abs() * input_norms


# -- masks: True stays ---------------------------------------------------------------------------------------


def keep_largest(score: Tensor, sparsity: float, *, by_row: bool = False) -> Tensor:
    """A mask without the ``sparsity`` share of lowest scores, of all or of each row. Ties: the earlier stay.

    ``score`` any shape, or (rows, columns) with `by_row`. The number of zeros is rounded. ValueError for a
    sparsity outside 0 to 1.
    """
    if not 0 <= sparsity <= 1:
        raise ValueError(f"sparsity is {sparsity}; it is the share of zeros, from 0 to 1")
    rows = score if by_row else score.reshape(1, -1)
    num_zeros = round(sparsity * rows.shape[-1])
    if not num_zeros:
        return torch.ones_like(score, dtype=torch.bool)
    threshold = rows.kthvalue(num_zeros, dim=-1, keepdim=True).values
    mask = rows > threshold
    missing = rows.shape[-1] - num_zeros - mask.count_nonzero(-1).unsqueeze(-1)
    if bool(missing.any()):  # equal scores on the threshold: the first of them stay
        equal = rows == threshold
        mask |= equal & (equal.cumsum(-1) <= missing)
    return mask.reshape(score.shape)


def two_of_four(score: Tensor) -> Tensor:
    """The two highest of every four neighbours along the last dim stay (`two_of_four_plainly` sorts them).

    ``score`` (..., inputs); returns a mask of that shape. Ties: the earlier stays.

    ValueError where the last dim is no multiple of four.
    """
    if score.shape[-1] % 4:
        raise ValueError(f"{score.shape[-1]} inputs do not make groups of four")
    of_group = score.unflatten(-1, (-1, 4)).unbind(-1)
    before_me = [torch.zeros_like(of_group[0], dtype=torch.uint8) for _ in of_group]
    for later in range(1, 4):
        for earlier in range(later):
            later_wins = of_group[later] > of_group[earlier]
            before_me[earlier] += later_wins
            before_me[later] += ~later_wins
    return (torch.stack(before_me, -1) < 2).reshape(score.shape)


def two_of_four_plainly(score: Tensor) -> Tensor:
    """`two_of_four`, group by group, to be read. ``score`` (rows, columns)."""
    mask = torch.zeros_like(score, dtype=torch.bool)
    for row in range(score.shape[0]):
        for first in range(0, score.shape[1], 4):
            group = score[row, first : first + 4].tolist()
            best = sorted(range(4), key=lambda place: -group[place])[:2]
            for place in best:
                mask[row, first + place] = True
    return mask


def mask_of(score: Tensor, sparsity: float, scope: str, pattern: str) -> Tensor:
    """The mask of a matrix's scores (out, in). ValueError for unknown names, and 2:4 that is not half."""
    check_choice("scope", scope, ("row", "layer"))
    check_choice("pattern", pattern, PATTERNS)
    if pattern == "2:4":
        if sparsity != 0.5:
            raise ValueError(f"2:4 is a sparsity of 0.5, not {sparsity}")
        return two_of_four(score)
    return keep_largest(score, sparsity, by_row=scope == "row")


# -- whole models --------------------------------------------------------------------------------------------


def magnitude_masks(
    model: nn.Module, sparsity: float = 0.5, scope: str = "layer", pattern: str = "unstructured"
) -> Masks:
    """A mask for each linear map of the layers, by |w|. Neither embedding nor head is touched.

    With ``scope="global"`` one threshold cuts all matrices, so that some lose more than others. ValueError
    for unknown names, a sparsity outside 0 to 1, and 2:4 with another sparsity or over all matrices at once.
    """
    check_choice("scope", scope, SCOPES)
    scores = {name: magnitude(linear.weight) for name, linear in linears(model).items()}
    if scope != "global":
        return {name: mask_of(score, sparsity, scope, pattern) for name, score in scores.items()}
    if pattern != "unstructured":
        raise ValueError(
            f"pattern {pattern!r} is a matter of neighbours: scope 'global' has no meaning for it"
        )
    whole = keep_largest(torch.cat([score.flatten() for score in scores.values()]), sparsity)
    parts = whole.split([score.numel() for score in scores.values()])
    return {n: part.reshape(s.shape) for (n, s), part in zip(scores.items(), parts, strict=True)}


def apply_masks(model: nn.Module, masks: Mapping[str, Tensor]) -> nn.Module:
    """Set what the masks leave out to zero, in place.

    masks: each in the shape of its weight, by the name of a linear layer or of a parameter.
    """
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, mask in masks.items():
            parameters[name if name in parameters else f"{name}.weight"].mul_(mask)
    return model


def prune_wanda(
    model: nn.Module, batches: Sequence[Tensor], sparsity: float = 0.5, pattern: str = "unstructured"
) -> Masks:
    """Prune the layers in place, one after another, by Wanda's score within each row; returns the masks.

    batches: tokens for calibration, each (batch, seq). No weight that stays is changed. Errors are those of
    `layer_by_layer` and `mask_of`.
    """
    masks: Masks = {}
    for seen in layer_by_layer(model, batches):
        for name, inputs in seen.items():
            weight = inputs.linear.weight
            masks[name] = mask_of(wanda(weight, inputs.input_norms), sparsity, "row", pattern)
            weight.data.mul_(masks[name])
    return masks


def sparsity_of(model: nn.Module) -> float:
    """Share of zeros among the weights of the layers' linear maps."""
    weights = [linear.weight for linear in linears(model).values()]
    return sum(int((weight == 0).sum()) for weight in weights) / sum(weight.numel() for weight in weights)
