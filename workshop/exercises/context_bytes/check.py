"""Exercise: what a rank sends so that its queries see all keys, by a ring and by Ulysses.

Ring attention: Liu et al. 2023, arXiv 2310.01889, section 3. Ulysses: Jacobs et al. 2023, arXiv 2309.14509,
section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

Formula = Callable[..., float]


def _ring(seq_len: float, kv_heads: int, head_dim: int, ranks: int) -> float:
    return (ranks - 1) * 2 * kv_heads * head_dim * seq_len / ranks * 2


def _ulysses(held_heads: int, seq_len: float, head_dim: int, ranks: int) -> float:
    return (ranks - 1) / ranks * held_heads * head_dim * seq_len / ranks * 2


def _formula(method: str, s: int, h: int, g: int, d: int, n: int) -> float:
    """seq_len, heads, kv_heads, head_dim, ranks."""
    return _ring(s, g, d, n) if method == "ring" else _ulysses(2 * h + 2 * g, s, d, n)


def _but(ring: Formula = _formula, ulysses: Formula = _formula) -> Formula:
    """The right formula, but for one method."""
    return lambda method, *sizes: (ring if method == "ring" else ulysses)(method, *sizes)


CALLS = tuple(
    Call((method, *numbers))
    for numbers in ((8_192, 32, 8, 128, 2), (131_072, 128, 8, 128, 8), (4_096, 16, 16, 64, 4))
    for method in ("ring", "ulysses")
)

MISTAKES = (
    Mistake(_but(ring=lambda _, s, _h, g, d, n: _ring(s / 2, g, d, n)), "Keys *and* values go round."),
    Mistake(
        _but(ring=lambda _, s, _h, g, d, n: _ring(s, g, d, n) * n / (n - 1)),
        "After N - 1 hops everybody has seen every block: nobody sends in the last step.",
    ),
    Mistake(
        _but(ring=lambda _, s, h, _g, d, n: _ring(s, h, d, n)),
        "The ring sends keys and values: there are `kv_heads` of them, not `heads`.",
    ),
    Mistake(
        _but(ulysses=lambda _, s, h, g, d, n: n * _ulysses(2 * h + 2 * g, s, d, n)),
        "A rank holds the q, k and v of its own positions only: `seq_len / ranks` of them.",
    ),
    Mistake(
        _but(ulysses=lambda _, s, h, g, d, n: _ulysses(h + 2 * g, s, d, n)),
        "Ulysses sends four tensors: q, k and v on the way there, and the output on the way back.",
    ),
    Mistake(
        _but(ulysses=lambda _, s, h, g, d, n: _ulysses(2 * h + 2 * g, s, d, n) * n / (n - 1)),
        "Of each tensor a rank keeps 1 / ranks: that part is not sent.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Three shapes, both ways."""
    compare(names["context_bytes"], "context_bytes", CALLS, _formula, MISTAKES)
    return (
        "With more ranks, a rank of the ring sends nearly the same: all keys and values pass by it. "
        "In Ulysses it sends ever less: about 1 / ranks."
    )
