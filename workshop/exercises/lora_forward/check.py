"""Exercise: a linear map with a low-rank change beside it.

Hu et al. 2021, arXiv 2106.09685, equation 3 and section 4.1: h = W x + (alpha / r) B A x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

Forward = Callable[..., Any]


def _forward(scale: Callable[[float, int], float], frozen: bool = True) -> Forward:
    def forward(x: Any, weight: Any, a: Any, b: Any, alpha: float) -> Any:
        return frozen * (x @ weight.T) + scale(alpha, len(a)) * ((x @ a.T) @ b.T)

    return forward


_right = _forward(lambda alpha, r: alpha / r)
MISTAKES: tuple[tuple[Forward, str], ...] = (
    (_forward(lambda *_: 1.0), "The scale alpha / r is missing."),
    (
        _forward(lambda alpha, _: alpha),
        "That is alpha, not alpha / r: with a larger r the change would grow.",
    ),
    (_forward(lambda alpha, r: alpha * r), "alpha is divided by r, not multiplied."),
    (_forward(lambda alpha, r: r / alpha), "The scale is upside down: alpha / r."),
    (_forward(lambda alpha, r: alpha / r, False), "The frozen part W x is lost."),
)


def _cases() -> list[tuple[Any, ...]]:
    import numpy as np

    drawn = np.random.default_rng(0)
    small = (np.eye(2), np.zeros((3, 2)), np.array([[1.0, 2.0]]), np.array([[1.0], [0.0], [10.0]]), 2.0)
    shapes = ((5, 6), (7, 6), (3, 6), (7, 3))
    return [small, (*(drawn.standard_normal(shape) for shape in shapes), 8.0)]


def check(names: dict[str, Any]) -> str:
    """A small case to read, a random one, and the low-rank way taken."""
    import numpy as np

    cases = _cases()
    for case in cases:
        found = np.asarray(call(names["lora_forward"], "lora_forward", Call(case)), dtype=float)
        wanted = _right(*case)
        if found.shape != wanted.shape:
            raise Wrong(f"The result has shape {found.shape}; wanted {wanted.shape}.")
        if np.allclose(found, wanted, atol=1e-9):
            continue
        why = next((s for mistake, s in MISTAKES if np.allclose(found, mistake(*case), atol=1e-9)), "")
        rows = [shown(each[0].round(4).tolist()) for each in (found, wanted)]
        raise Wrong(f"The first row is {rows[0]}; wanted {rows[1]}. {why}".rstrip())
    return "r (inputs + outputs) products a token beside the frozen ones. Merged, there will be none."
