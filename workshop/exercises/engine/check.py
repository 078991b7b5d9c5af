"""Checks of an answer: the value found, the value wanted, and what the difference looks like.

A check that only says "wrong" teaches nothing. Most wrong answers are one of a few, each a formula of its
own, so a check keeps those formulas too: where one of them gives exactly what the learner's function
gave, in every call, the learner is told what the answer would have been right for.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workshop.facts.short_repr import short_repr

HANG_SECONDS = 10  # after which ranks that wait for each other are told so


class Wrong(Exception):
    """The answer is not right, and why: a sentence for the learner."""


@dataclass(frozen=True)
class Call:
    """One call of the learner's function; prints as it would be typed."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def of(self, function: Callable[..., Any]) -> Any:
        """Make the call."""
        return function(*self.args, **self.kwargs)

    def written(self, name: str) -> str:
        """The call as source: ``ring_bytes(1000, 4)``."""
        given = [_argument(value) for value in self.args]
        given += [f"{key}={_argument(value)}" for key, value in self.kwargs.items()]
        return f"{name}({', '.join(given)})"


@dataclass(frozen=True)
class Mistake:
    """A formula people write instead, and what to say to it."""

    formula: Callable[..., float]
    sentence: str


def call(function: Any, name: str, made: Call) -> Any:
    """The learner's answer to one call; an error of theirs carries a note with the call."""
    if not callable(function):
        raise Wrong(f"`{name}` is {shown(function)}, not a function.")
    try:
        return made.of(function)
    except Exception as error:
        error.add_note(f"in the call `{made.written(name)}`")
        raise


def number(value: Any, written: str) -> float:
    """``value`` as a float, where it is a number; Wrong says what it is instead."""
    if value is None:
        raise Wrong(f"`{written}` gave nothing (None). Is a `return` missing?")
    if hasattr(value, "item") and getattr(value, "size", None) == 1:  # a numpy scalar or array of one
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise Wrong(f"`{written}` gave {shown(value)}, of type {type(value).__name__}; wanted a number.")
    return _float(value)


def _float(value: Any) -> float:
    """As a float; infinite where it is too large for one."""
    try:
        return float(value)
    except OverflowError:  # 10**400
        return math.inf if value > 0 else -math.inf


def compare(
    function: Any,
    name: str,
    calls: Sequence[Call],
    formula: Callable[..., float],
    mistakes: Sequence[Mistake] = (),
    *,
    rel_tol: float = 1e-9,
) -> None:
    """The learner's function against the right formula, in every call; Wrong at the first difference."""
    answers = [number(call(function, name, made), made.written(name)) for made in calls]
    if _same(answers, [made.of(formula) for made in calls], rel_tol):
        return
    advice = next(
        (
            mistake.sentence
            for mistake in mistakes
            if _same(answers, [made.of(mistake.formula) for made in calls], rel_tol)
        ),
        "",
    )
    for made, value in zip(calls, answers, strict=True):
        wanted = made.of(formula)
        if not _same([value], [wanted], rel_tol):
            raise Wrong(
                f"`{made.written(name)}` gave {shown(value)}; wanted {shown(wanted)}. {advice}".rstrip()
            )


def nobody_waits(lines: Sequence[int | None], advice: str) -> None:
    """Wrong, if some rank waited in vain; ``lines`` holds the line of the cell where each did, or None.

    ``advice`` is for the case that all of them wait.
    """
    waiting = [rank for rank, line in enumerate(lines) if line is not None]
    if not waiting:
        return
    first = waiting[0]
    if len(waiting) < len(lines):
        what_happened = f"Rank {first} waits for a message that nobody sends, or takes:"
        advice = (
            "Other ranks have left the function. Each receive needs its send, each send its receive, and "
            "what `isend` and `irecv` return needs its `wait()`: a message may not have left before."
        )
    else:
        what_happened = "The ranks wait for each other:"
    raise Wrong(
        f"{what_happened} after {HANG_SECONDS} seconds rank {first} still waits on line {lines[first]}. "
        f"{advice}"
    )


def shown(value: Any) -> str:
    """A value as a person would write it: 1,500 and 5.02e-05; long things on one line and shortened."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return " ".join(short_repr(value, 80).split())
    value = _float(value)
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.6g}"


def _argument(value: Any) -> str:
    if type(value) is int:
        return f"{value:_}"
    if getattr(value, "shape", ()):  # an array: its numbers would fill the line
        return "..."
    return getattr(value, "__name__", None) or repr(value)


def _same(answers: Sequence[float], wanted: Sequence[float], rel_tol: float) -> bool:
    return all(
        math.isclose(f, w, rel_tol=rel_tol, abs_tol=1e-9) for f, w in zip(answers, wanted, strict=True)
    )
