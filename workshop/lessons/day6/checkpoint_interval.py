"""Exercise: how often to save, so that saving and doing again together cost least (Young, 1974).

The loss is d / t + t / 2M for a save of d seconds, an interval of t and M seconds between failures. Its
derivative is zero at t = sqrt(2 d M).
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from workshop.lessons.check import Call, Mistake, compare
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
A save stops training for `save_seconds`. One device fails every `device_hours_between` hours on average, and
any failure stops the job. Write `checkpoint_interval(save_seconds, num_devices, device_hours_between)`: the
seconds of work between two saves at which the share of time lost, d / t + t / 2M, is least."""

STUB = '''\
def checkpoint_interval(save_seconds: float, num_devices: int, device_hours_between: float) -> float:
    """Seconds between two saves that lose least; M is the mean time between failures of the whole job."""
    seconds_between = ...
    return ...
'''

SOLUTION = '''\
def checkpoint_interval(save_seconds: float, num_devices: int, device_hours_between: float) -> float:
    """Seconds between two saves that lose least; M is the mean time between failures of the whole job."""
    seconds_between = device_hours_between * 3600 / num_devices
    return (2 * save_seconds * seconds_between) ** 0.5
'''

CALLS = (
    Call((60.0, 1024, 50_677.0)),
    Call((60.0, 16_384, 50_677.0)),  # Llama 3 405B's failures (arXiv:2407.21783, section 3.3.4)
    Call((5.0, 8, 10_000.0)),
)


def _between(n: int, hours: float) -> float:
    return hours * 3600 / n


MISTAKES = (
    Mistake(
        lambda d, _, hours: sqrt(2 * d * hours * 3600),
        "That is for one device. Of `num_devices` one fails `num_devices` times as often.",
    ),
    Mistake(
        lambda d, n, hours: sqrt(2 * d * hours * 3600 * n),
        "More devices fail more often, not less: divide by `num_devices`.",
    ),
    Mistake(
        lambda d, n, hours: sqrt(2 * d * hours / n),
        "`device_hours_between` are hours and `save_seconds` seconds: an hour has 3,600.",
    ),
    Mistake(
        lambda d, n, hours: sqrt(d * _between(n, hours)),
        "The 2 is missing: a failure loses half an interval on average, not a whole one.",
    ),
    Mistake(
        lambda d, n, hours: sqrt(d * _between(n, hours) / 2),
        "d / t + t / 2M is least where d / t^2 = 1 / 2M. Solve that for t again.",
    ),
    Mistake(lambda d, n, hours: 2 * d * _between(n, hours), "That is t squared: take the root."),
    Mistake(
        lambda _, n, hours: _between(n, hours),
        "That is the time from failure to failure: most of the work would be done again.",
    ),
)


def _answer(formula: str) -> str:
    return f"def checkpoint_interval(d, n, hours):\n    return {formula}\n"


def _check(names: dict[str, Any]) -> str:
    """Three clusters against the closed form."""
    compare(
        names["checkpoint_interval"],
        "checkpoint_interval",
        CALLS,
        lambda d, n, hours: sqrt(2 * d * _between(n, hours)),
        MISTAKES,
    )
    return "1,024 devices, one minute a save: every 77 minutes. 16,384 devices: every 19."


CHECKPOINT_INTERVAL = Exercise(
    name="checkpoint_interval",
    day=6,
    question=QUESTION,
    stub=STUB,
    hints=(
        "How many seconds pass, on average, until any of `num_devices` devices fails?",
        "M = device_hours_between * 3600 / num_devices. Now set the derivative of d / t + t / 2M to zero.",
        "-d / t^2 + 1 / 2M = 0, so t^2 = 2 d M.",
    ),
    solution=SOLUTION,
    defines=("checkpoint_interval",),
    check=_check,
    shows="The best interval grows with the root of what a save costs: a save four times "
    "as fast is made twice as often.",
    wrong_answers=(
        WrongAnswer("one device", _answer("(2 * d * hours * 3600) ** 0.5"), "That is for one device"),
        WrongAnswer("hours", _answer("(2 * d * hours / n) ** 0.5"), "an hour has 3,600"),
        WrongAnswer("without the 2", _answer("(d * hours * 3600 / n) ** 0.5"), "The 2 is missing"),
        WrongAnswer("without the root", _answer("2 * d * hours * 3600 / n"), "take the root"),
        WrongAnswer("at each failure", _answer("hours * 3600 / n"), "would be done again"),
        WrongAnswer("multiplied", _answer("(2 * d * hours * 3600 * n) ** 0.5"), "divide by `num_devices`"),
    ),
)
