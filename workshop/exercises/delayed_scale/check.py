"""Exercise: delayed scaling, one step of the amax history.

Micikevicius et al. 2022, arXiv 2209.05433, section 3.2; Transformer Engine's ``DelayedScaling`` with
``amax_compute_algo="max"``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

Step = Callable[[list[float], float, int, float], tuple[float, list[float]]]


def _step(
    of: Callable[[list[float]], float] = max,
    keep: Callable[[list[float], float, int], list[float]] | None = None,
) -> Step:
    """The solution with one thing changed: what is taken of the history, or what is kept of it."""

    def made(history: list[float], amax: float, length: int, largest: float) -> tuple[float, list[float]]:
        kept = keep(history, amax, length) if keep else [*history, amax][-length:]
        return of(history) / largest, kept

    return made


def _current(history: list[float], amax: float, length: int, largest: float) -> tuple[float, list[float]]:
    return amax / largest, [*history, amax][-length:]


def _this_one_too(
    history: list[float], amax: float, length: int, largest: float
) -> tuple[float, list[float]]:
    return max([*history, amax]) / largest, [*history, amax][-length:]


def _upside_down(history: list[float], amax: float, length: int, largest: float) -> tuple[float, list[float]]:
    return largest / max(history), [*history, amax][-length:]


MISTAKES: tuple[tuple[Step, str], ...] = (
    (_current, "That is current scaling: it looks at this step's tensor before it is there."),
    (_this_one_too, "This step's amax is in the maximum, but the scale must be known before the tensor is."),
    (_upside_down, "Upside down: numbers are divided by the scale, so that max(history) becomes `largest`."),
    (
        _step(lambda history: history[-1]),
        "The newest alone is used. The exercise asks for the largest of all, which is safer.",
    ),
    (
        _step(lambda history: sum(history) / len(history)),
        "The mean is too small for half of the steps.",
    ),
    (
        _step(keep=lambda history, amax, _: [*history, amax]),
        "The history only grows: an old outlier would set the scale forever.",
    ),
    (
        _step(keep=lambda history, amax, length: [*history, amax][:length]),
        "The oldest are kept and this step is dropped: keep the newest.",
    ),
    (
        _step(keep=lambda history, amax, length: [amax, *history][:length]),
        "The newest stands last, so the new one goes to the end.",
    ),
    (
        _step(keep=lambda history, *_: list(history)),
        "This step's amax is not remembered: the scale will never change.",
    ),
)

LARGEST = (448.0, 57344.0)
AMAX = (2.0, 8.0, 1.0, 0.5, 4.0, 0.25, 0.25, 0.25)


def _play(function: Callable[..., Any], length: int, largest: float) -> list[tuple[float, list[float]]]:
    """Eight steps from a history of two values; the answers."""
    history, answers = [3.0, 1.0], []
    for amax in AMAX:
        made = Call((list(history), amax, length, largest))
        answer = call(function, "delayed_scale", made)
        if (
            not isinstance(answer, tuple | list)
            or len(answer) != 2
            or not isinstance(answer[1], list | tuple)
        ):
            raise Wrong(f"`{made.written('delayed_scale')}` gave {shown(answer)}; wanted (scale, history).")
        answers.append((answer[0], list(answer[1])))
        history = list(answer[1])
    return answers


def _same(answer: list[tuple[float, list[float]]], wanted: list[tuple[float, list[float]]]) -> bool:
    return all(
        math.isclose(float(mine[0]), right[0], rel_tol=1e-6) and mine[1] == right[1]
        for mine, right in zip(answer, wanted, strict=True)
    )


def check(names: dict[str, Any]) -> str:
    """Eight steps for E4M3 and for E5M2; the answers of one step are the next one's question."""
    for largest in LARGEST:
        answers, wanted = (_play(each, 3, largest) for each in (names["delayed_scale"], _step()))
        if _same(answers, wanted):
            continue
        advice = next(
            (words for formula, words in MISTAKES if _same(answers, _play(formula, 3, largest))), ""
        )
        step = next(
            i for i, pair in enumerate(zip(answers, wanted, strict=True)) if not _same([pair[0]], [pair[1]])
        )
        raise Wrong(
            f"At step {step + 1}, with length 3 and largest {largest:g}: {shown(answers[step])}; wanted "
            f"{shown(wanted[step])}. {advice}".rstrip()
        )
    return "In the second step amax grows from 2 to 8: the scale has room for 3, and follows one step later."
