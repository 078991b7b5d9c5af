"""Exercise: one step of AdamW.

Kingma and Ba 2014, arXiv 1412.6980, algorithm 1, with the decay taken out of the gradient: Loshchilov and
Hutter 2017, arXiv 1711.05101, algorithm 2.
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Call, Wrong, call, shown
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Write `adamw_step(weight, gradient, first, second, step)`: one step of AdamW on numpy arrays. `first` and
`second` are the moments as the step before left them (zeros at first), `step` counts from 1. Return the new
weight and both new moments. The rate, the two betas, epsilon and the decay are given as constants."""

STUB = '''\
import numpy as np

RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def adamw_step(weight, gradient, first, second, step):
    """The new weight and moments. The decay shrinks the weight; it is no part of the gradient."""
    first = BETA1 * first + (1 - BETA1) * gradient
    second = ...
    corrected_first, corrected_second = ..., ...  # both begin at zero: divide by what is missing
    weight = ...
    return weight, first, second
'''

SOLUTION = '''\
import numpy as np

RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def adamw_step(weight, gradient, first, second, step):
    """The new weight and moments. The decay shrinks the weight; it is no part of the gradient."""
    first = BETA1 * first + (1 - BETA1) * gradient
    second = BETA2 * second + (1 - BETA2) * gradient**2
    corrected_first, corrected_second = first / (1 - BETA1**step), second / (1 - BETA2**step)
    weight = weight - RATE * DECAY * weight - RATE * corrected_first / (np.sqrt(corrected_second) + EPSILON)
    return weight, first, second
'''

NAME = "adamw_step"
RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def _wanted(weight: Any, gradient: Any, first: Any, second: Any, step: int) -> tuple[Any, Any, Any]:
    import numpy as np

    first = BETA1 * first + (1 - BETA1) * gradient
    second = BETA2 * second + (1 - BETA2) * gradient**2
    update = first / (1 - BETA1**step) / (np.sqrt(second / (1 - BETA2**step)) + EPSILON)
    return weight * (1 - RATE * DECAY) - RATE * update, first, second


def _sentence(weight: Any, moments: tuple[Any, Any], step: int, found: Any) -> str:
    """What a wrong new weight would have been right for; moments are the new ones."""
    import numpy as np

    first, second = moments
    m, v = first / (1 - BETA1**step), second / (1 - BETA2**step)
    kept = weight * (1 - RATE * DECAY)
    others = (
        (kept - RATE * first / (np.sqrt(second) + EPSILON), "Moments begin at zero: correct for it."),
        (
            weight - RATE * m / (np.sqrt(v) + EPSILON),
            "The decay is missing: weights also shrink by rate x decay.",
        ),
        (kept - RATE * m / (v + EPSILON), "The root is missing: the second moment is of squares."),
        (
            weight * (1 - DECAY) - RATE * m / (np.sqrt(v) + EPSILON),
            "The decay is not times the rate: it is a part of the step.",
        ),
        (
            weight + RATE * DECAY * weight + RATE * m / (np.sqrt(v) + EPSILON),
            "It climbs: the step goes down.",
        ),
    )
    return next((said for value, said in others if np.allclose(found, value, rtol=1e-9, atol=1e-12)), "")


def _check(names: dict[str, Any]) -> str:
    """Three steps in a row, each from the right state; a missing correction shows most in the first."""
    import numpy as np

    generator = np.random.default_rng(0)
    weight, first, second = generator.normal(size=6), np.zeros(6), np.zeros(6)
    for step in (1, 2, 3):
        gradient = generator.normal(size=6)
        given = (weight, gradient, first, second, step)
        copies = tuple(value.copy() for value in given[:-1])
        found = call(names[NAME], NAME, Call((*copies, step)))
        if not isinstance(found, tuple) or len(found) != 3:
            raise Wrong(f"It gave {shown(found)}; wanted three arrays: weight, first and second moment.")
        wanted = _wanted(*given)
        for name, mine, right in zip(("first", "second"), found[1:], wanted[1:], strict=True):
            if not np.allclose(mine, right, rtol=1e-9):
                raise Wrong(f"The {name} moment after step {step} is not right. {_moment(given, mine)}")
        if not np.allclose(found[0], wanted[0], rtol=1e-9, atol=1e-12):
            said = _sentence(weight, (wanted[1], wanted[2]), step, found[0])
            raise Wrong(f"The weight after step {step} is not right. {said}".rstrip())
        weight, first, second = wanted
    return "Two numbers kept for each weight, and a step whose size does not depend on the gradient's."


def _moment(given: tuple[Any, ...], found: Any) -> str:
    """What a wrong moment would have been right for."""
    import numpy as np

    weight, gradient, first, second, _ = given
    if np.allclose(found, BETA2 * second + (1 - BETA2) * gradient, rtol=1e-9):
        return "The second one is of the gradient's squares."
    if np.allclose(found, BETA1 * first + (1 - BETA1) * (gradient + DECAY * weight), rtol=1e-9):
        return "The decay has no place in it: that is Adam with L2, whose decay is divided by the root."
    return "It is beta times the old one and (1 - beta) times what is new."


ADAMW_STEP = Exercise(
    name=NAME,
    day=1,
    question=QUESTION,
    stub=STUB,
    hints=(
        "The second moment is made like the first, from `gradient**2` and with BETA2.",
        "After one step `first` is 0.1 times the gradient: divide by `1 - BETA1**step`. The second likewise.",
        "From the weight go RATE * DECAY * weight and RATE * first / (root of second + EPSILON), corrected.",
    ),
    solution=SOLUTION,
    defines=(NAME,),
    check=_check,
    shows="Divided by its own size, every weight moves about as far as the rate says.",
    wrong_answers=(
        WrongAnswer(
            "no correction",
            SOLUTION.replace(" / (1 - BETA1**step)", "").replace(" / (1 - BETA2**step)", ""),
            "Moments begin at zero",
        ),
        WrongAnswer("no square", SOLUTION.replace("gradient**2", "gradient"), "gradient's squares"),
        WrongAnswer("no decay", SOLUTION.replace(" - RATE * DECAY * weight", ""), "decay is missing"),
        WrongAnswer(
            "no root",
            SOLUTION.replace("np.sqrt(corrected_second)", "np.abs(corrected_second)"),
            "root is missing",
        ),
        WrongAnswer(
            "decay in the gradient",
            SOLUTION.replace(
                "    first = BETA1", "    gradient = gradient + DECAY * weight\n    first = BETA1"
            ).replace(" - RATE * DECAY * weight", ""),
            "Adam with L2",
        ),
        WrongAnswer(
            "decay without the rate", SOLUTION.replace("RATE * DECAY * weight", "DECAY * weight"), "not times"
        ),
    ),
)
