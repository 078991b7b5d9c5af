"""What a learner is told: the verdict, the question or the next hint, and what the name now holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workshop.exercises.engine.exercise import Exercise
from workshop.exercises.engine.judge import Verdict, bind_solution, is_untouched, judge
from workshop.exercises.engine.progress import Progress
from workshop.exercises.engine.prose import boxed, code_block, paragraph, table

# What is said first, and the colour of the rule beside it.
_OPENING = {
    "unsolved": ("not solved yet", "#b58900"),
    "wrong": ("not right", "#c0392b"),
    "right": ("right", "#2e8b57"),
}


@dataclass(frozen=True, repr=False)
class Feedback:
    """The answer's verdict and the sentences that go with it; shows itself as text and as HTML."""

    name: str
    verdict: Verdict
    then: tuple[str, ...]  # question or hint, binding, progress: one paragraph each

    @property
    def solved(self) -> bool:
        """Whether the answer was right."""
        return self.verdict.state == "right"

    def __str__(self) -> str:
        opening, _ = _OPENING[self.verdict.state]
        printed = f"{self.verdict.printed}\n\n" if self.verdict.printed else ""
        return printed + "\n".join([f"{self.name}: {opening}. {self.verdict.message}", *self.then])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        opening, colour = _OPENING[self.verdict.state]
        printed = code_block(self.verdict.printed) if self.verdict.printed else ""
        first = paragraph(f"`{self.name}`: {opening}. {self.verdict.message}")
        return printed + boxed(first + "".join(map(paragraph, self.then)), colour)


def answer(exercise: Exercise, source: str, namespace: dict[str, Any], progress: Progress) -> Feedback:
    """Judge one answer and remember it; where it is not right, bind the solution and help.

    Help is the question, as long as nothing has been tried; then it is a hint, one more with each try.
    """
    verdict = judge(exercise, source, namespace)
    solved = verdict.state == "right"
    if verdict.state != "unsolved":  # a cell with places still open is not a try
        progress.tried(exercise.name, solved)
    if solved:
        then = [exercise.shows]
    else:
        bind_solution(exercise, namespace)
        then = [_help(exercise, source, progress), _bound(exercise)]
    return Feedback(exercise.name, verdict, (*then, *progress.complaints()))


def _help(exercise: Exercise, source: str, progress: Progress) -> str:
    """The question where the stub is untouched, and it costs no hint; else the next hint."""
    if is_untouched(exercise, source):
        return exercise.question
    return next_hint(exercise, progress)


def _bound(exercise: Exercise) -> str:
    names = " and ".join(f"`{name}`" for name in exercise.defines)
    verb = "is" if len(exercise.defines) == 1 else "are"
    return f"For now {names} {verb} the reference solution, so the cells below run."


def next_hint(exercise: Exercise, progress: Progress) -> str:
    """The next hint as a sentence; hints come one by one, and the last one says where the solution is."""
    total = len(exercise.hints)
    index = progress.next_hint(exercise.name, total)
    last = (
        f" (The last hint; `%exercise {exercise.name} --solution` shows a solution.)"
        if index + 1 == total
        else ""
    )
    return f"Hint {index + 1} of {total}: {exercise.hints[index]}{last}"


class ProgressTable:
    """All exercises by day and how far each is, then all guesses; shows itself as text and as HTML.

    guesses: (name, yours, measured, how far off) of each, see `workshop.exercises.engine.guess.Guesses.rows`.
    """

    HEAD = ("Day", "Exercise", "State", "Tries", "Hints")
    GUESSES = ("Guess", "Yours", "Measured", "")

    def __init__(
        self,
        exercises: Sequence[Exercise],
        progress: Progress,
        guesses: Sequence[tuple[str, str, str, str]] = (),
    ):
        self.rows = [self._row(exercise, progress) for exercise in exercises]
        self.guesses = list(guesses)
        solved = sum(progress[exercise.name].solved for exercise in exercises)
        self.summary = f"{solved} of {len(exercises)} solved"

    def _row(self, exercise: Exercise, progress: Progress) -> tuple[str, ...]:
        so_far = progress[exercise.name]
        hints = f"{so_far.hints} of {len(exercise.hints)}"
        return str(exercise.day), exercise.name, so_far.state, str(so_far.tries), hints

    def __str__(self) -> str:
        lines = [*in_columns([self.HEAD, *self.rows]), self.summary]
        if self.guesses:
            lines += ["", *in_columns([self.GUESSES, *self.guesses])]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        guesses = table(self.GUESSES, self.guesses) if self.guesses else ""
        return table(self.HEAD, self.rows) + paragraph(self.summary) + guesses


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of texts as lines, each column as wide as its longest text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
