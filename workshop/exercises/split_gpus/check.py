"""Exercise: how many GPUs answer, and how many train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, number

NAME = "split_gpus"
Times = tuple[int, float, float]
CASES: tuple[Times, ...] = (
    (8, 30.0, 10.0),
    (8, 9.0, 1.0),
    (2, 5.0, 50.0),
    (16, 1.0, 100.0),
    (5, 10.0, 11.0),
    (64, 700.0, 333.0),
    (7, 3.0, 5.0),
    (3, 4.0, 4.0),
    (10, 13.0, 5.0),
    (6, 1.0, 40.0),
)


def _seconds(writing: int, case: Times) -> float:
    gpus, rollout, train = case
    return max(rollout / writing, train / (gpus - writing))


def _in_turns(case: Times) -> int:
    gpus, rollout, train = case
    return min(range(1, gpus), key=lambda w: rollout / w + train / (gpus - w))


def _wanted(case: Times) -> int:
    return min(range(1, case[0]), key=lambda w: _seconds(w, case))


def _rounded(case: Times) -> int:
    gpus, rollout, train = case
    return min(max(1, round(gpus * rollout / (rollout + train))), gpus - 1)


MISTAKES: tuple[tuple[Callable[[Times], int], str], ...] = (
    (
        _in_turns,
        "That is the best split where the two jobs run one after the other; here they run at the same time.",
    ),
    (lambda case: case[0] - _wanted(case), "That is the number of GPUs that train."),
    (
        _rounded,
        "The rounded share of the GPUs that write is not always the best number: compare its two neighbors.",
    ),
    (lambda case: case[0] // 2, "That is half of them, whatever the times are."),
)


def check(names: dict[str, Any]) -> str:
    """Ten pairs of times, with few GPUs and with many."""
    function = names[NAME]
    answers = []
    for case in CASES:
        made = Call(case)
        value = number(call(function, NAME, made), made.written(NAME))
        if value != int(value) or not 1 <= value <= case[0] - 1:
            raise Wrong(
                f"`{made.written(NAME)}` gave {value:g}; at least 1 GPU writes, and at least 1 trains."
            )
        answers.append(int(value))
    wanted = [_wanted(case) for case in CASES]
    if answers != wanted:
        advice = next((s for rule, s in MISTAKES if answers == [rule(case) for case in CASES]), "")
        where = next(i for i in range(len(CASES)) if answers[i] != wanted[i])
        case = CASES[where]
        raise Wrong(
            f"`{Call(case).written(NAME)}` gave {answers[where]}: a step of "
            f"{_seconds(answers[where], case):.3g} s; with {wanted[where]} it is "
            f"{_seconds(wanted[where], case):.3g} s. {advice}".rstrip()
        )
    return f"{len(CASES)} splits, none of them could be quicker"
