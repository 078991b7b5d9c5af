"""What an exercise is: a question, a stub to fill, hints, a solution, and the answers people give instead.

Two kinds, told apart by ``ranks``:

plain      ``ranks=None``. The cell runs in the notebook, and ``check`` is handed the names it defined.
on ranks   ``ranks=4``. The cell is a piece of a distributed program. It runs on real ranks, followed by
           ``check_program``; ``check`` is handed what each rank reported there, in rank order.

``check`` raises `workshop.lessons.check.Wrong` with a sentence for the learner, or returns a sentence with
what it saw. The solution and the wrong answers are source text, kept here so that the tests can run every one
of them: an exercise whose check has not been seen to fail is not an exercise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WrongAnswer:
    """An answer people do give, and a part of what they must be told."""

    name: str
    source: str
    message: str


@dataclass(frozen=True, repr=False)
class Exercise:
    """One exercise. Shows itself as its question, its state of play and its stub."""

    name: str
    day: int
    question: str  # one or two sentences, ending in what the function must return or do
    stub: str  # the cell as the lesson gives it; holds at least one `...`
    hints: tuple[str, ...]  # from a nudge to nearly the answer
    solution: str
    defines: tuple[str, ...]  # the functions the cell must define; the solution is bound under these names
    check: Callable[[Any], str]  # names (plain) or reports (on ranks) -> what it saw; raises Wrong
    shows: str  # what a right answer has shown, said when it is right
    wrong_answers: tuple[WrongAnswer, ...]
    ranks: int | None = None
    check_program: str = ""  # runs on every rank after the cell
    needs: tuple[str, ...] = ()  # earlier exercises whose functions this one calls

    def __str__(self) -> str:
        where = f"on {self.ranks} ranks" if self.ranks else "in the notebook"
        return (
            f"{self.name} (day {self.day}, checked {where})\n{self.question}\n\n"
            f"%%exercise {self.name}\n{self.stub}"
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from workshop.lessons.prose import code_block, paragraph

        return paragraph(self.question) + code_block(f"%%exercise {self.name}\n{self.stub}")


@dataclass(frozen=True, repr=False)
class Solution:
    """The reference solution of an exercise; shows its source as text and as HTML."""

    name: str
    source: str

    def __str__(self) -> str:
        return f"# The reference solution of {self.name}\n{self.source}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from workshop.lessons.prose import code_block

        return code_block(str(self))
