"""Exercise: the gradient's noise scale from two batch sizes.

McCandlish, Kaplan, Amodei et al. 2018, arXiv 1812.06162, equations A.1 to A.3 (the simple noise scale).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

NAME = "noise_scale"
TRUE = ((1.0, 6.0, 4, 64), (0.25, 5.0, 1, 8), (2.0, 400.0, 16, 512), (3.0, 0.5, 2, 3))
CALLS = tuple(Call((small, g + s / small, big, g + s / big)) for g, s, small, big in TRUE)


def _noise(small: int, at_small: float, big: int, at_big: float) -> float:
    return (at_small - at_big) / (1 / small - 1 / big)


def _right(small: int, at_small: float, big: int, at_big: float) -> float:
    noise = _noise(small, at_small, big, at_big)
    return noise / (at_big - noise / big)


def _over(square: Any) -> Any:
    """The noise over a squared gradient that `square(call)` gives."""
    return lambda *call: _noise(*call) / square(call)


MISTAKES = (
    Mistake(_over(lambda call: call[3]), "The big batch has noise of its own, S / big: subtract it."),
    Mistake(_over(lambda call: call[1]), "The small batch has noise of its own, S / small: subtract it."),
    Mistake(lambda *call: 1 / _right(*call), "That is inverted: divide the noise by the gradient."),
    Mistake(lambda *call: _noise(*call), "That is S alone: divide it by |G|^2."),
    Mistake(
        lambda _, at_small, big, at_big: (at_small - at_big) / (at_big - (at_small - at_big) / big),
        "The difference of the two squares is S times (1 / small - 1 / big), not S.",
    ),
    Mistake(
        _over(lambda call: call[3] + _noise(*call) / call[2]),
        "|G|^2 is too large: the big batch's square is |G|^2 plus its noise, so subtract the noise.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Four pairs of batches whose gradient and noise are known."""
    compare(names[NAME], NAME, CALLS, _right, MISTAKES)
    return "Four gradients with a known noise: each noise scale is right."
