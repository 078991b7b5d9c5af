"""Exercise: one step of AdamW.

Kingma and Ba 2014, arXiv 1412.6980, algorithm 1, with the decay taken out of the gradient: Loshchilov and
Hutter 2017, arXiv 1711.05101, algorithm 2.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

NAME = "adamw_step"
RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def _wanted(weight: Any, gradient: Any, first: Any, second: Any, step: int) -> tuple[Any, Any, Any]:
    import numpy as np

    first = BETA1 * first + (1 - BETA1) * gradient
    second = BETA2 * second + (1 - BETA2) * gradient**2
    update = first / (1 - BETA1**step) / (np.sqrt(second / (1 - BETA2**step)) + EPSILON)
    return weight * (1 - RATE * DECAY) - RATE * update, first, second


def _sentence(weight: Any, moments: tuple[Any, Any], step: int, answer: Any) -> str:
    """What a wrong new weight would have been right for; moments are the new ones."""
    import numpy as np

    first, second = moments
    m, v = first / (1 - BETA1**step), second / (1 - BETA2**step)
    kept = weight * (1 - RATE * DECAY)
    others = (
        (kept - RATE * first / (np.sqrt(second) + EPSILON), "Moments begin at zero, so correct for that."),
        (
            weight - RATE * m / (np.sqrt(v) + EPSILON),
            "The decay is missing. Weights also shrink by rate x decay.",
        ),
        (
            kept - RATE * m / (v + EPSILON),
            "The root is missing. The second moment is a mean of squares, so take its root.",
        ),
        (
            weight * (1 - DECAY) - RATE * m / (np.sqrt(v) + EPSILON),
            "The decay is not times the rate here. Multiply it by the rate, as it is a part of the step.",
        ),
        (
            weight + RATE * DECAY * weight + RATE * m / (np.sqrt(v) + EPSILON),
            "The weight climbs here, and the step must go down.",
        ),
    )
    return next((advice for value, advice in others if np.allclose(answer, value, rtol=1e-9, atol=1e-12)), "")


def check(names: dict[str, Any]) -> str:
    """Three steps in a row, each from the right state; a missing correction shows most in the first."""
    import numpy as np

    generator = np.random.default_rng(0)
    weight, first, second = generator.normal(size=6), np.zeros(6), np.zeros(6)
    for step in (1, 2, 3):
        gradient = generator.normal(size=6)
        given = (weight, gradient, first, second, step)
        copies = tuple(value.copy() for value in given[:-1])
        answer = call(names[NAME], NAME, Call((*copies, step)))
        if not isinstance(answer, tuple | list) or len(answer) != 3:
            raise Wrong(f"It gave {shown(answer)}; wanted three arrays: weight, first and second moment.")
        wanted = _wanted(*given)
        for name, mine, right in zip(("first", "second"), answer[1:], wanted[1:], strict=True):
            if not np.allclose(mine, right, rtol=1e-9):
                raise Wrong(f"The {name} moment after step {step} is not right. {_moment(given, mine)}")
        if not np.allclose(answer[0], wanted[0], rtol=1e-9, atol=1e-12):
            advice = _sentence(weight, (wanted[1], wanted[2]), step, answer[0])
            raise Wrong(f"The weight after step {step} is not right. {advice}".rstrip())
        weight, first, second = wanted
    return "AdamW keeps two numbers for each weight. The size of its step does not depend on the gradient's."


def _moment(given: tuple[Any, ...], answer: Any) -> str:
    """What a wrong moment would have been right for."""
    import numpy as np

    weight, gradient, first, second, step = given
    corrected = (
        (BETA1 * first + (1 - BETA1) * gradient) / (1 - BETA1**step),
        (BETA2 * second + (1 - BETA2) * gradient**2) / (1 - BETA2**step),
    )
    if any(np.allclose(answer, one, rtol=1e-9) for one in corrected):
        return "Use the corrected moments only for the step, and return the moments as they are."
    if np.allclose(answer, BETA2 * second + (1 - BETA2) * gradient, rtol=1e-9):
        return "The second moment is a mean of the gradient's squares."
    if np.allclose(answer, BETA1 * first + (1 - BETA1) * (gradient + DECAY * weight), rtol=1e-9):
        return "The decay does not belong here. That is Adam with L2, whose decay is divided by the root."
    return "It is beta times the old moment plus (1 - beta) times the new value."
