"""Exercise: of several launches, the cheapest that stays under two limits with a margin, or a refusal."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

NAME = "choose_run"
Candidate = dict[str, Any]
Rule = Callable[[list[Candidate], float, float, float], str]


def _candidate(name: str, ranks: int, size: float, seconds: float) -> Candidate:
    return {"name": name, "ranks": ranks, "bytes": size, "seconds": seconds}


EVERY = [
    _candidate("one rank, slow", 1, 95.0, 130.0),
    _candidate("one rank", 1, 92.0, 85.0),
    _candidate("two ranks, small", 2, 40.0, 70.0),
    _candidate("two ranks", 2, 78.0, 48.0),
    _candidate("four ranks", 4, 60.0, 30.0),
    _candidate("eight ranks", 8, 44.0, 20.0),
]
CASES = (
    (100.0, 100.0, 0.2),  # one rank is cheapest, and has no room for the margin
    (100.0, 100.0, 0.0),
    (90.0, 100.0, 0.2),
    (120.0, 100.0, 0.2),  # memory is plenty, one rank would miss the deadline by the margin
    (120.0, 90.0, 0.0),
    (70.0, 1_000.0, 0.1),
    (1_000.0, 36.0, 0.1),
    (1_000.0, 1_000.0, 0.5),
)
IMPOSSIBLE = ((30.0, 1_000.0, 0.1), (1_000.0, 10.0, 0.1), (41.0, 21.0, 0.2))


def _rule(key: Callable[[Candidate], float], fits: Callable[[Candidate, float, float, float], bool]) -> Rule:
    def chosen(candidates: list[Candidate], cap: float, deadline: float, margin: float) -> str:
        left = [c for c in candidates if fits(c, cap, deadline, margin)]
        return str(min(left, key=key)["name"]) if left else ""

    return chosen


def _cost(c: Candidate) -> float:
    return float(c["ranks"] * c["seconds"])


def _both(c: Candidate, cap: float, deadline: float, margin: float) -> bool:
    return c["bytes"] * (1 + margin) <= cap and c["seconds"] * (1 + margin) <= deadline


_RIGHT = _rule(_cost, _both)
MISTAKES: tuple[tuple[Rule, str], ...] = (
    (
        _rule(lambda c: c["seconds"], _both),
        "The fastest candidate was chosen. Ranks cost money too: the cost is ranks times seconds.",
    ),
    (
        _rule(lambda c: c["bytes"], _both),
        "The candidate with the fewest bytes was chosen. The cost is ranks times seconds, not memory.",
    ),
    (
        _rule(_cost, lambda c, cap, deadline, _: c["bytes"] <= cap and c["seconds"] <= deadline),
        "The predictions were compared without the margin. Multiply both by 1 + margin first.",
    ),
    (
        _rule(
            _cost,
            lambda c, cap, end, margin: (
                c["bytes"] <= cap * (1 + margin) and c["seconds"] <= end * (1 + margin)
            ),
        ),
        "The margin makes the limits tighter, not wider: it belongs to the predictions.",
    ),
    (
        _rule(_cost, lambda c, cap, end, margin: c["bytes"] * (1 + margin) <= cap and c["seconds"] <= end),
        "The memory got its margin and the time did not. The time is a prediction too.",
    ),
    (
        _rule(_cost, lambda c, cap, _, margin: c["bytes"] * (1 + margin) <= cap),
        "The deadline is missing: a candidate was chosen that takes too long.",
    ),
)


def _answer(function: Any, case: tuple[float, float, float]) -> str:
    """The name of what was chosen."""
    made = Call((copy.deepcopy(EVERY), *case))
    value = call(function, NAME, made)
    if not (isinstance(value, dict) and value in EVERY):
        raise Wrong(
            f"`choose_run(candidates, {case[0]:g}, {case[1]:g}, {case[2]:g})` gave {shown(value)}; "
            "wanted one of the candidates, the whole dictionary."
        )
    return str(value["name"])


def check(names: dict[str, Any]) -> str:
    """Six candidates under eight pairs of limits, then under three that nothing meets."""
    function = names[NAME]
    answers = [_answer(function, case) for case in CASES]
    wanted = [_RIGHT(EVERY, *case) for case in CASES]
    if answers != wanted:
        advice = next((s for rule, s in MISTAKES if answers == [rule(EVERY, *case) for case in CASES]), "")
        where = next(i for i, (f, w) in enumerate(zip(answers, wanted, strict=True)) if f != w)
        cap, deadline, margin = CASES[where]
        raise Wrong(
            f"With a cap of {cap:g} bytes, {deadline:g} s and a margin of {margin:.0%} it chose "
            f"{answers[where]!r}; wanted {wanted[where]!r}. {advice}".rstrip()
        )
    for case in IMPOSSIBLE:
        _refuses(function, case)
    return f"{len(CASES)} pairs of limits, and {len(IMPOSSIBLE)} that nothing meets"


def _refuses(function: Any, case: tuple[float, float, float]) -> None:
    """Wrong, unless a ValueError with a sentence is raised."""
    cap, deadline, margin = case
    try:
        value = function(copy.deepcopy(EVERY), *case)
    except ValueError as error:
        if len(str(error).split()) < 3:
            raise Wrong(
                f"It refuses with {str(error)!r}. Write a sentence: the reader must know what to change."
            ) from None
        return
    raise Wrong(
        f"Nothing is possible with a cap of {cap:g} bytes, {deadline:g} s and a margin of {margin:.0%}, "
        f"and it gave {shown(value)}. A run that cannot work must not start: raise a ValueError."
    )
