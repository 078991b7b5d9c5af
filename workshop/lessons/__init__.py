"""Exercises: one module a day (a folder where a day has many), each exercise with its stub, hints, check,
solution, and the wrong answers its check has been seen to refuse.

`find` gives an exercise by name, `all_exercises` every one in order, `solution` the reference solution to
look at. Nothing here imports torch, except `workshop.lessons.on_ranks`, which only ranks import.
"""

from __future__ import annotations

import functools
import importlib
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workshop.lessons.exercise import Exercise, Solution

DAYS = ("day0", "day1", "day2", "day3", "day4", "day5", "day6")

__all__ = ["all_exercises", "find", "solution"]


@functools.cache
def all_exercises() -> tuple[Exercise, ...]:
    """Every exercise, in the order of the days and of the lessons in a day."""
    days = [importlib.import_module(f"workshop.lessons.{day}") for day in DAYS]
    return tuple(exercise for day in days for exercise in day.EXERCISES)


def find(name: str) -> Exercise:
    """The exercise of that name; ValueError lists the known ones, the nearest first."""
    known = {exercise.name: exercise for exercise in all_exercises()}
    if name in known:
        return known[name]
    near = get_close_matches(name, known, 1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"no exercise is called {name!r}.{meant} Known: {', '.join(known)}.")


def solution(name: str) -> Solution:
    """The reference solution of an exercise; shows its source. ValueError on an unknown name."""
    from workshop.lessons.exercise import Solution

    return Solution(name, find(name).solution)
