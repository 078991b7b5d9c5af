"""Exercises: a folder each, with its question, its stub, a solution, and answers that people give.

::

    <name>/exercise.toml   title, lesson and place in it, question, hints
           stub.py         the cell as the lesson gives it; holds at least one `...`
           solution.py     the reference solution, bound until the learner's own answer is right
           answers.py      right answers of another kind (a check judges what a function does), wrong ones,
                           each with one mistake and a part of what the learner must be told
           check.py        `check`, which raises `Wrong` with a sentence for the learner
           on_ranks.py     `try_on_rank`, where the answer is tried on ranks: what each of them runs

Stubs and answers are text here: the engine runs them as cells, nothing imports them. `find` gives an exercise
by name, `all_exercises` every one in the order of the lessons, `solution` the reference solution to look at;
`beside` lays a guess beside what was measured.
Nothing here imports torch, except what only ranks import: each ``on_ranks``, `engine.group` and
`engine.sent_bytes`.
"""

from __future__ import annotations

import functools
from difflib import get_close_matches
from pathlib import Path

from workshop.exercises.engine.exercise import Exercise, Solution
from workshop.exercises.engine.folder import SETTINGS, read_exercise
from workshop.exercises.engine.guess import beside

__all__ = ["all_exercises", "beside", "find", "solution"]


@functools.cache
def all_exercises() -> tuple[Exercise, ...]:
    """Every exercise, in the order of the lessons and of the places in a lesson."""
    folders = [path.parent for path in Path(__file__).parent.glob(f"*/{SETTINGS}")]
    return tuple(sorted(map(read_exercise, folders), key=lambda each: (each.lesson, each.place)))


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
    return Solution(name, find(name).solution)
