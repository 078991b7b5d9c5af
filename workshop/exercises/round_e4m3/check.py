"""Exercise: round a number to E4M3, in plain Python.

E4M3 (Micikevicius et al. 2022, arXiv 2209.05433, table 1): three bits of mantissa, smallest normal number
2^-6, largest value 448, no infinity. The rounding by hand is that of `workshop.facts.formats`.
"""

from __future__ import annotations

import math
from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare
from workshop.facts.formats import FORMATS

E4M3 = FORMATS["e4m3"]


def _other(
    nearest: Any = round, lowest: int = -6, mantissa: int = 3, largest: float = 448.0, signed: bool = True
) -> Any:
    """The solution with one thing changed."""

    def rounded(value: float) -> float:
        if value == 0:
            return value
        step = 2.0 ** (max(math.frexp(value)[1] - 1, lowest) - mantissa)
        answer = min(nearest(abs(value) / step) * step, largest)
        return math.copysign(answer, value) if signed else answer

    return rounded


CALLS = tuple(
    Call((value,))
    for value in (
        *(0.3952, -0.3952, 1.0, 1.0625, 1.1875, 15.9, 17.0, 100.0, 0.0),
        *(0.02, 0.002, 0.0009, -0.01, 440.0, 448.0, 470.0, 1e6, -1e6),
    )
)

MISTAKES = (
    Mistake(
        _other(nearest=math.floor),
        "This cuts the digits off. Rounding goes to the nearer of the two neighboring values.",
    ),
    Mistake(
        _other(nearest=lambda steps: math.floor(steps + 0.5)),
        "A tie always goes up here, which adds a little to every sum. Go to the even number.",
    ),
    Mistake(
        _other(lowest=-1000),
        "Below 2^-6 there are no finer steps: the exponent stays at -6, and small numbers lose digits.",
    ),
    Mistake(_other(largest=math.inf), "E4M3 ends at 448, so every larger number becomes 448."),
    Mistake(
        _other(mantissa=2),
        "There must be eight steps from one power of two to the next. Here there are four, as with 2 bits.",
    ),
    Mistake(
        _other(mantissa=4),
        "There must be eight steps from one power of two to the next. Here there are sixteen.",
    ),
    Mistake(_other(signed=False), "The sign is lost. Round the magnitude, then restore the sign."),
)


def check(names: dict[str, Any]) -> str:
    """Middles, subnormal numbers, too large ones, both signs."""
    compare(names["round_e4m3"], "round_e4m3", CALLS, E4M3.round, MISTAKES)
    return (
        "0.3952 becomes 0.40625; 1.0625 lies in the middle and becomes 1; 0.0009 becomes 0; 470 becomes 448."
    )
