"""Exercise: round a number to E4M3, in plain Python.

E4M3 (Micikevicius et al. 2022, arXiv 2209.05433, table 1): three bits of mantissa, smallest normal number
2^-6, largest value 448, no infinity. The rounding by hand is that of `workshop.facts.formats`.
"""

from __future__ import annotations

import math
from typing import Any

from workshop.facts.formats import FORMATS
from workshop.lessons.check import Call, Mistake, compare
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Write `round_e4m3(value)`: the value of E4M3 nearest to a finite number. Between 2^e and 2^(e+1) there are
eight of them, equally spaced. Below 2^-6 the spacing stays as it is just above. From the middle between two,
go to the one that is an even number of steps. What is larger than 448 becomes 448. Keep the sign."""

STUB = '''\
import math


def round_e4m3(value: float) -> float:
    """The nearest value of E4M3: 3 bits of mantissa, smallest normal number 2**-6, largest value 448."""
    if value == 0:
        return value
    exponent = ...  # of the power of two at or below |value|, but never under -6
    step = ...  # from one value of E4M3 to the next
    return ...
'''

SOLUTION = '''\
import math


def round_e4m3(value: float) -> float:
    """The nearest value of E4M3: 3 bits of mantissa, smallest normal number 2**-6, largest value 448."""
    if value == 0:
        return value
    exponent = max(math.floor(math.log2(abs(value))), -6)
    step = 2.0 ** (exponent - 3)
    nearest = round(abs(value) / step) * step
    return math.copysign(min(nearest, 448.0), value)
'''

E4M3 = FORMATS["e4m3"]


def _other(
    nearest: Any = round, lowest: int = -6, mantissa: int = 3, largest: float = 448.0, signed: bool = True
) -> Any:
    """The solution with one thing changed."""

    def rounded(value: float) -> float:
        if value == 0:
            return value
        step = 2.0 ** (max(math.frexp(value)[1] - 1, lowest) - mantissa)
        found = min(nearest(abs(value) / step) * step, largest)
        return math.copysign(found, value) if signed else found

    return rounded


CALLS = tuple(
    Call((value,))
    for value in (
        *(0.3952, -0.3952, 1.0, 1.0625, 1.1875, 15.9, 17.0, 100.0, 0.0),
        *(0.02, 0.002, 0.0009, -0.01, 440.0, 448.0, 470.0, 1e6, -1e6),
    )
)

MISTAKES = (
    Mistake(_other(nearest=math.floor), "That cuts the digits off. Rounding goes to the nearer of the two."),
    Mistake(
        _other(nearest=lambda steps: math.floor(steps + 0.5)),
        "From the middle that always goes up, which adds a little to every sum. Go to the even number.",
    ),
    Mistake(
        _other(lowest=-1000),
        "Under 2^-6 there are no finer steps: the exponent stays at -6, and small numbers lose digits.",
    ),
    Mistake(_other(largest=math.inf), "E4M3 ends at 448: what is larger becomes 448."),
    Mistake(_other(mantissa=2), "Eight steps from one power of two to the next: with 2 bits there are four."),
    Mistake(_other(mantissa=4), "Eight steps from one power of two to the next: here there are sixteen."),
    Mistake(_other(signed=False), "The sign is lost: round the magnitude, then give the sign back."),
)


def _check(names: dict[str, Any]) -> str:
    """Middles, subnormal numbers, too large ones, both signs."""
    compare(names["round_e4m3"], "round_e4m3", CALLS, E4M3.round, MISTAKES)
    return (
        "0.3952 becomes 0.40625; 1.0625 lies in the middle and becomes 1; 0.0009 becomes 0; 470 becomes 448."
    )


ROUND_E4M3 = Exercise(
    name="round_e4m3",
    day=1,
    question=QUESTION,
    stub=STUB,
    hints=(
        "`math.floor(math.log2(abs(value)))` is the exponent; `max(..., -6)` keeps it from falling further.",
        "Eight steps between 2^e and 2^(e+1): a step is 2.0 ** (exponent - 3).",
        "Count in steps: `round(abs(value) / step) * step`. Python's `round` goes to the even number.",
        "At the end `math.copysign(min(nearest, 448.0), value)`.",
    ),
    solution=SOLUTION,
    defines=("round_e4m3",),
    check=_check,
    shows="A format is a ruler: three bits say how fine, the exponent says which part of the ruler.",
    wrong_answers=(
        WrongAnswer("cuts", SOLUTION.replace("round(abs", "math.floor(abs"), "cuts the digits off"),
        WrongAnswer(
            "up from the middle",
            SOLUTION.replace("round(abs(value) / step)", "math.floor(abs(value) / step + 0.5)"),
            "always goes up",
        ),
        WrongAnswer(
            "finer and finer",
            SOLUTION.replace(
                "max(math.floor(math.log2(abs(value))), -6)", "math.floor(math.log2(abs(value)))"
            ),
            "no finer steps",
        ),
        WrongAnswer("no end", SOLUTION.replace("min(nearest, 448.0)", "nearest"), "ends at 448"),
        WrongAnswer("two bits", SOLUTION.replace("exponent - 3", "exponent - 2"), "there are four"),
        WrongAnswer("four bits", SOLUTION.replace("exponent - 3", "exponent - 4"), "there are sixteen"),
        WrongAnswer(
            "no sign",
            SOLUTION.replace("math.copysign(min(nearest, 448.0), value)", "min(nearest, 448.0)"),
            "The sign is lost",
        ),
    ),
)
