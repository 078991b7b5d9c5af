"""A matrix as two thin ones: PowerSGD on one page.  (Vogels et al. 2019, arXiv 1905.13727, algorithm 1)

Gradients of matrices are nearly of low rank. So send, instead of G (n x m), two factors with r columns each::

    P = mean over ranks of G Q         n x r       all_reduce
    P = orthogonalised
    Q = mean over ranks of G^T P       m x r       all_reduce
    G is taken to be  P Q^T            r (n + m) numbers travelled instead of n m

This is one step of the power iteration for the largest singular directions of the *mean* gradient, and it is
linear in G, so sums can be taken on the way: ordinary all_reduces. Three things make it work:

* Q is kept for the next step (*warm start*): gradients change slowly, so the iteration goes on over steps;
* what P Q^T misses is added to the next gradient (*error feedback*);
* vectors (norms, biases) and matrices too small to gain are sent as they are.
"""

# No `from __future__ import annotations` here: DDP compares a hook's annotations with its own classes.
import torch
import torch.distributed as dist
from torch import Tensor


def factor_values(rows: int, columns: int, rank: int) -> int | None:
    """Numbers of P and Q together, or None where the matrix itself has no more."""
    values = (rows + columns) * min(rank, rows, columns)
    return values if values < rows * columns else None


class PowerSGD:
    """What the hook remembers: Q and the error of every matrix, by bucket and place in it.

    rank: columns of P and Q. start: steps sent in full, at least 2.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, rank: int = 2, start: int = 2) -> None:
        if start < 2 or rank < 1:
            raise ValueError(f"rank = {rank}, start = {start}: rank is at least 1, start at least 2")
        self.group, self.rank, self.start, self.steps = group, rank, start, 0
        self.factors: dict[tuple[int, int], Tensor] = {}
        self.errors: dict[tuple[int, int], Tensor] = {}

    def mean_(self, tensors: list[Tensor]) -> None:
        """Each tensor becomes its mean over ranks; one message for all."""
        if tensors:
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            dist.all_reduce(flat, group=self.group)
            flat /= dist.get_world_size(self.group)
            for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def first_factor(self, columns: int, like: Tensor) -> Tensor:
        """A random Q (columns x rank), the same on every rank: a generator of its own, seeded alike."""
        generator = torch.Generator().manual_seed(len(self.factors))
        return torch.randn(columns, min(self.rank, *like.shape), generator=generator).to(like)


def powersgd_hook(state: PowerSGD, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Mean over ranks of a bucket, its matrices by two factors."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    gradients = bucket.gradients()
    matrices: dict[tuple[int, int], Tensor] = {}
    for place, gradient in enumerate(gradients):
        matrix = gradient.view(len(gradient), -1)
        rows, columns = matrix.shape
        if state.steps >= state.start and factor_values(rows, columns, state.rank):
            matrices[bucket.index(), place] = matrix
    compressed = {place for _, place in matrices}
    state.mean_([gradient for place, gradient in enumerate(gradients) if place not in compressed])
    approximate(state, matrices)
    state.steps += bucket.is_last()
    done.set_result(bucket.buffer())
    return done


def approximate(state: PowerSGD, matrices: dict[tuple[int, int], Tensor]) -> None:
    """Put P Q^T into every matrix, in place, and remember what it misses."""
    for key, matrix in matrices.items():
        if key not in state.factors:
            state.factors[key] = state.first_factor(matrix.shape[1], matrix)
            state.errors[key] = torch.zeros_like(matrix)
        matrix += state.errors[key]
    rows = {key: matrix @ orthogonal(state.factors[key]) for key, matrix in matrices.items()}
    state.mean_(list(rows.values()))
    rows = {key: orthogonal(P) for key, P in rows.items()}
    columns = {key: matrix.T @ rows[key] for key, matrix in matrices.items()}
    own = {key: matrix.clone() for key, matrix in matrices.items()}
    state.mean_(list(columns.values()))
    for key, matrix in matrices.items():
        state.factors[key] = columns[key]
        matrix.copy_(rows[key] @ columns[key].T)
        state.errors[key] = own[key] - matrix


def orthogonal(factor: Tensor) -> Tensor:
    """An orthonormal basis of what the columns span, (rows, rank) as ``factor``.

    The paper takes Gram-Schmidt; QR bears zeros.
    """
    return torch.linalg.qr(factor).Q
