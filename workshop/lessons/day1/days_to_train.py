"""Exercise: FLOPs, devices, their peak and the share of it that is reached make days.

The figure to reproduce: 70 billion parameters, 15 trillion tokens, 1,024 H100 at half of 989 TFLOP/s, 144
days.
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Call, Mistake, compare
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Write `days_to_train(flops, num_devices, peak_flops_per_second, mfu)`: the days that a training run of
`flops` FLOPs takes on so many devices, if each reaches the share `mfu` of its peak."""

STUB = '''\
def days_to_train(flops: float, num_devices: int, peak_flops_per_second: float, mfu: float) -> float:
    """Days of a training run; mfu is a share of the peak, 0 to 1."""
    return ...
'''

SOLUTION = '''\
def days_to_train(flops: float, num_devices: int, peak_flops_per_second: float, mfu: float) -> float:
    """Days of a training run; mfu is a share of the peak, 0 to 1."""
    seconds = flops / (num_devices * peak_flops_per_second * mfu)
    return seconds / (24 * 60 * 60)
'''

DAY = 24 * 60 * 60
CALLS = (
    Call((6 * 70e9 * 15e12, 1024, 989e12, 0.5)),
    Call((3.8e25, 16384, 989e12, 0.4)),  # Llama 3 405B's FLOPs and MFU (arXiv:2407.21783)
    Call((1e18, 1, 1e12, 0.25)),
)

MISTAKES = (
    Mistake(lambda f, n, peak, mfu: f / (n * peak * mfu), "These are seconds. A day has 86,400 of them."),
    Mistake(lambda f, n, peak, mfu: f / (n * peak * mfu) / 3600, "These are hours. A day has 24 of them."),
    Mistake(
        lambda f, n, peak, _: f / (n * peak) / DAY,
        "That is the time at the full peak. `mfu` is the share of it that is reached.",
    ),
    Mistake(
        lambda f, n, peak, mfu: f / (n * peak) * mfu / DAY,
        "A lower share of the peak must make the run longer, not shorter: divide by `mfu`.",
    ),
    Mistake(
        lambda f, _, peak, mfu: f / (peak * mfu) / DAY,
        "That is one device. `num_devices` of them share the work.",
    ),
    Mistake(
        lambda f, n, peak, mfu: 6 * f / (n * peak * mfu) / DAY,
        "`flops` are already all FLOPs of the run: the 6 of parameters and tokens is in them.",
    ),
)


def _answer(formula: str) -> str:
    return f"def days_to_train(flops, num_devices, peak_flops_per_second, mfu):\n    return {formula}\n"


def _check(names: dict[str, Any]) -> str:
    """Three runs against seconds over 86,400."""
    compare(
        names["days_to_train"],
        "days_to_train",
        CALLS,
        lambda f, n, peak, mfu: f / (n * peak * mfu) / DAY,
        MISTAKES,
    )
    return "70B on 15T tokens with 1,024 H100 at half their peak: 144 days."


DAYS_TO_TRAIN = Exercise(
    name="days_to_train",
    day=1,
    question=QUESTION,
    stub=STUB,
    hints=(
        "How many FLOPs do all devices together do in one second, at the share of the peak that they reach?",
        "`num_devices * peak_flops_per_second * mfu` FLOPs a second. Seconds are FLOPs over that.",
        "Divide the seconds by 24 * 60 * 60.",
    ),
    solution=SOLUTION,
    defines=("days_to_train",),
    check=_check,
    shows="Time to train is one division. The one number in it that nobody can look up is the MFU.",
    wrong_answers=(
        WrongAnswer(
            "seconds", _answer("flops / (num_devices * peak_flops_per_second * mfu)"), "These are seconds"
        ),
        WrongAnswer(
            "at the full peak",
            _answer("flops / (num_devices * peak_flops_per_second) / 86400"),
            "at the full peak",
        ),
        WrongAnswer(
            "multiplies by the share",
            _answer("flops * mfu / (num_devices * peak_flops_per_second) / 86400"),
            "divide by `mfu`",
        ),
        WrongAnswer(
            "one device", _answer("flops / (peak_flops_per_second * mfu) / 86400"), "That is one device"
        ),
    ),
)
