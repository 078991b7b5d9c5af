"""GPTQ: let the weights that are still free make up for the one just rounded. (Frantar et al., arXiv
2210.17323)

Rounding to nearest keeps each weight close. But what a layer is for is its output, and inputs are correlated:
where two inputs are always alike, an error of +e on one weight is undone by -e on the other. So minimise

    | X W^T - X Q^T |^2      over Q on the grid             X: (positions, columns), the layer's inputs

The error of one row is (w - q) H (w - q)^T with the *Hessian* H = X^T X, the same for all rows
(`compress.hessian`). Round column after column. When column j has been rounded, the best move of all later
ones is (equation 2)

    w_later  -=  (w_j - q_j) / [H^-1]_jj * [H^-1]_j,later                          ("optimal brain surgeon")

and then column j leaves the problem, which takes one step of Gaussian elimination on H^-1.
`column_by_column` is just that. Three things make it fast, without changing the result:

* all rows in the same order, so one H^-1 serves for all of them (step 1 of the paper);
* the numbers needed from H^-1, after each elimination, are the rows of its Cholesky factor (step 3): so
  one factorization at the start, and it is stable;
* columns are done in blocks; what a block did wrong is moved to the columns behind it once, as one matrix
  product (step 2, *lazy batch updates*).

The rounding itself is that of `quantize`: a group's scale is taken from the weights as they are when its
first column comes up, or (``static_groups``) from the weights as they were at the start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from workshop.compress.hessian import inverse_factor
from workshop.compress.quantize import Grid, Quantized

BLOCK = 128
DAMPING = 0.01


class Rounding:
    """Codes, scales and zero points as they come to be, column by column, of a matrix that moves meanwhile.

    Columns are rows of memory here: ``left`` is (columns, rows).
    """

    def __init__(self, left: Tensor, grid: Grid, static_groups: bool) -> None:
        self.grid, self.static_groups = grid, static_groups
        self.size = grid.columns_of_group(len(left))
        self.codes = torch.empty_like(left)
        self.scales, self.zeros = grid.scales(left.T)

    def column(self, j: int, left: Tensor) -> Tensor:
        """Round column j, and return what its codes stand for; a group's first column sets its scale."""
        group = j // self.size
        if not self.static_groups and j % self.size == 0:
            scale, zero = self.grid.scales(left[j : j + self.size].T)
            self.scales[:, group], self.zeros[:, group] = scale[:, 0], zero[:, 0]
        scale, zero = self.scales[:, group], self.zeros[:, group]
        self.codes[j] = self.grid.codes(left[j], scale, zero)
        return (self.codes[j] - zero) * scale

    def result(self) -> Quantized:
        """All of it, rows as rows."""
        kind = torch.int8 if self.grid.symmetric else torch.uint8
        return Quantized(self.codes.T.contiguous().to(kind), self.scales, self.zeros, self.grid)


def column_by_column(weight: Tensor, hessian: Tensor, grid: Grid, damping: float = DAMPING) -> Quantized:
    """The plain version: round a column, move all later ones, take the column out of H^-1.

    ``weight``: (rows, columns); ``hessian``: (columns, columns), X^T X or a multiple of it, positive definite
    when ``damping`` times its mean diagonal is added to its diagonal.
    """
    left = weight.float().T.clone(memory_format=torch.contiguous_format)
    extra = damping * hessian.diagonal().mean() * torch.eye(len(hessian), device=hessian.device)
    inverse = torch.linalg.inv(hessian.float() + extra)
    rounding = Rounding(left, grid, static_groups=False)
    for j in range(len(left)):
        error = (left[j] - rounding.column(j, left)) / inverse[j, j]
        left[j + 1 :] -= inverse[j, j + 1 :].outer(error)
        inverse = inverse - inverse[:, j].outer(inverse[j]) / inverse[j, j]  # row and column j become zero
    return rounding.result()


def gptq(
    weight: Tensor,
    hessian: Tensor,
    grid: Grid,
    damping: float = DAMPING,
    block: int = BLOCK,
    static_groups: bool = False,
) -> Quantized:
    """The fast version: algorithm 1 of the paper. The same arguments, and the same result.

    Args:
        weight: (rows, columns).
        hessian: (columns, columns); an input that is never seen (zero on the diagonal) does not matter.
        grid: bits, groups.
        damping: share of the mean diagonal added to the diagonal.
        block: columns between two moves of all that is behind them; made a multiple of the group, or a whole
            group, so that a group's first column finds the group up to date.
        static_groups: all scales from the weights as they come: those of `quantize.round_to_nearest`.

    ValueError where H cannot be inverted even so.
    """
    left = weight.float().T.clone(memory_format=torch.contiguous_format)
    factor = inverse_factor(hessian, damping)
    rounding = Rounding(left, grid, static_groups)
    step = block if grid.group_size is None else max(block // rounding.size, 1) * rounding.size
    with _one_thread():
        for start in range(0, len(left), step):
            span = slice(start, min(start + step, len(left)))
            errors = _round_block(left, span, factor, rounding)
            left[span.stop :].addmm_(factor[span, span.stop :].T, errors, alpha=-1)
    return rounding.result()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """A column is too little work to share: on a busy machine threads would spend their time waiting."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _round_block(left: Tensor, span: slice, factor: Tensor, rounding: Rounding) -> Tensor:
    """Round the columns of a block, moving those behind in the block; their errors, (columns, rows)."""
    errors = torch.empty_like(left[span])
    for j in range(span.start, span.stop):
        error = (left[j] - rounding.column(j, left)) / factor[j, j]
        left[j + 1 : span.stop].addr_(factor[j, j + 1 : span.stop], error, alpha=-1)
        errors[j - span.start] = error
    return errors
