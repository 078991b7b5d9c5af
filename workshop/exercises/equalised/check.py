"""Exercise: the heart of Muon, which makes all singular values nearly 1.

Newton-Schulz with the three numbers of Jordan et al. 2024 (kellerjordan.github.io/posts/muon), as in
`torch.optim.Muon`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

NAME = "equalised"
A, B, C = 3.4445, -4.7750, 2.0315
TOLERANCE = 0.1  # of the norm: five rounds in bf16 are off by up to 0.05
CASES = (((12, 5), 1.0), ((5, 12), 100.0), ((8, 8), 0.01))
# A value this small is still on its way after five rounds, and 6 to 11 rounds are off by 0.2 to 0.6. Near 1
# the polynomial goes up and down, so that seven rounds look like five. bf16 holds all of these numbers.
SMALL = ((0.0, 1.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 2.0**-10))


def _by(polynomial: Callable[[Any], Any], rounds: int, divide: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A polynomial on the singular values, exactly; `divide` gives the number to divide by first."""

    def answer(matrix: Any) -> Any:
        import torch

        left, values, right = torch.linalg.svd(matrix.double() / divide(matrix), full_matrices=False)
        for _ in range(rounds):
            values = polynomial(values)
        return left * values @ right

    return answer


def _five(s: Any) -> Any:
    return A * s + B * s**3 + C * s**5


def _norm(matrix: Any) -> Any:
    return matrix.norm()


def _elementwise(matrix: Any) -> Any:
    near = matrix.double() / matrix.norm()
    for _ in range(5):
        near = _five(near)
    return near


def _mistakes() -> tuple[tuple[Callable[[Any], Any], str], ...]:
    few = [(_by(_five, rounds, _norm), f"That is what {word} give{s}.") for rounds, word, s in ROUNDS]
    return (
        (_by(lambda s: 0 * s + 1, 1, _norm), EXACT),
        (
            _elementwise,
            "The cube of a matrix is not the cube of each number: those are powers of its numbers.",
        ),
        *few,
    )


ROUNDS = (
    (1, "one round", "s"), (2, "two rounds", ""), (3, "three rounds", ""), (4, "four rounds", ""),
    (6, "six rounds", ""), (7, "seven rounds", ""), (10, "ten rounds", ""),
)  # fmt: skip
EXACT = (
    "The singular values are all exactly 1, so this is the nearest such matrix. It is a good answer to "
    "another question: Muon takes what five rounds of the polynomial give."
)
OTHER_NUMBER = (
    "The singular vectors are right, and the values are near 1. Was the matrix divided by another number "
    "than `matrix.norm()`?"
)


def check(names: dict[str, Any]) -> str:
    """A tall, a wide and a square matrix, of three sizes of numbers."""
    import torch

    draw = torch.Generator().manual_seed(0)
    drawn = [size * torch.randn(shape, generator=draw) for shape, size in CASES]
    for matrix in (*drawn, torch.tensor(SMALL)):
        answer = _answer(names[NAME], matrix)
        wanted = _by(_five, 5, _norm)(matrix)
        if not _off(answer, wanted) < TOLERANCE:
            raise Wrong(_words(matrix, answer))
    return "Tall, wide and square: after five rounds all singular values are between 0.6 and 1.3."


def _answer(function: Any, matrix: Any) -> Any:
    """What the learner's function gives, where it is a matrix of the right shape and type."""
    import torch

    kind = f"For a matrix of {matrix.shape[0]} rows and {matrix.shape[1]} columns it gave"
    try:
        answer = call(function, NAME, Call((matrix.clone(),)))
    except RuntimeError as error:
        if "must match" not in str(error):
            raise
        words = "The terms have different shapes: s^2 and s^4 belong to a square matrix, s^3 and s^5 to"
        raise Wrong(f"{words} one of the shape of `matrix`. ({error})") from error
    if not isinstance(answer, torch.Tensor):
        raise Wrong(f"{kind} {shown(answer)}; wanted a tensor.")
    if answer.shape != matrix.shape or answer.dtype != matrix.dtype:
        was, right = (f"{tuple(one.shape)}, {one.dtype}" for one in (answer, matrix))
        raise Wrong(f"{kind} {was}; wanted {right}.")
    return answer.double()


def _off(answer: Any, wanted: Any) -> float:
    return float((answer - wanted).norm() / wanted.norm())


def _words(matrix: Any, answer: Any) -> str:
    """What the singular values are, and what the answer would have been right for."""
    import torch

    rows, columns = matrix.shape
    kind = f"For a matrix of {rows} rows and {columns} columns "
    if not answer.isfinite().all() or answer.norm() > 1e3:
        return (
            f"{kind}the numbers grow without end. Was the matrix divided by its norm before the first round? "
            "Are all three terms there, each with its sign?"
        )
    off = {words: _off(answer, formula(matrix)) for formula, words in _mistakes()}
    nearest = min(off, key=lambda words: off[words])
    if off[nearest] < TOLERANCE:
        return f"{kind}it is not right. {nearest}"
    values = torch.linalg.svdvals(answer)
    left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    turned = left.mT @ answer @ right.mT
    if (turned - turned.diag().diag()).norm() < TOLERANCE * turned.norm() and 0.5 < values.min() < 1.3:
        return f"{kind}it is not right. {OTHER_NUMBER}"
    return (
        f"{kind}the singular values are {values.min():.2f} to {values.max():.2f}, or the singular vectors "
        "have changed. After five rounds the values are between 0.6 and 1.3, and the vectors are those of "
        "`matrix`."
    )
