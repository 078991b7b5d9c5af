"""What an exercise is: a question, a stub to fill, hints, a solution, and the answers people give instead.

Two kinds, told apart by ``ranks``:

plain      ``ranks=None``. The cell runs in the notebook, and ``check`` is handed the names it defined.
on ranks   ``ranks=4``. The cell is a piece of a distributed program. It runs on real ranks, followed by
           ``check_program``; ``check`` is handed what each rank reported there, in rank order.

``check`` raises `engine.check.Wrong` with a sentence for the learner, or returns a sentence with what it saw.
An exercise whose check has not been seen to fail is not an exercise: the tests run all answers in a folder.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workshop.exercises.engine.answers import Answer


@dataclass(frozen=True, repr=False)
class Exercise:
    """One exercise. Shows itself as its question, its state of play and its stub."""

    folder: Path
    title: str
    lesson: str  # the notebook it stands in, as "22_ddp"
    place: int  # among the exercises of the lesson: 1, 2, ...
    question: str  # one or two sentences, ending in what the function must return or do
    hints: tuple[str, ...]  # from a nudge to nearly the answer
    shows: str  # what a right answer has shown, said when it is right
    defines: tuple[str, ...]  # the functions the cell must define; the solution is bound under these names
    wrong_answers: tuple[Answer, ...]  # answers people give
    other_answers: tuple[Answer, ...]  # right answers of another kind than the solution
    ranks: int | None = None
    needs: tuple[str, ...] = ()  # earlier exercises whose functions this one calls

    @property
    def name(self) -> str:
        """As in ``%%exercise NAME``: the folder's."""
        return self.folder.name

    @property
    def day(self) -> int:
        """The day of its lesson, 0 to 6."""
        return int(self.lesson[0])

    @functools.cached_property
    def stub(self) -> str:
        """The cell as the lesson gives it."""
        return self._text("stub")

    @functools.cached_property
    def solution(self) -> str:
        """The reference solution."""
        return self._text("solution")

    @property
    def check(self) -> Callable[[Any], str]:
        """From names (plain) or reports (on ranks) to what it saw; raises `engine.check.Wrong`."""
        return importlib.import_module(f"workshop.exercises.{self.name}.check").check

    @property
    def check_program(self) -> str:
        """What runs on every rank after the cell; empty for a plain exercise."""
        if self.ranks is None:
            return ""
        return (
            "from workshop.exercises.engine.cpu_tensors import check_followed\n"
            f"from workshop.exercises.{self.name}.on_ranks import try_on_rank\n"
            f"check_followed(try_on_rank, {', '.join(self.defines)})\n"
        )

    def _text(self, stem: str) -> str:
        return (self.folder / f"{stem}.py").read_text(encoding="utf-8")

    def __str__(self) -> str:
        where = f"on {self.ranks} ranks" if self.ranks else "in the notebook"
        return (
            f"{self.title}\n({self.name}, in lesson {self.lesson}, checked {where})\n\n{self.question}\n\n"
            f"%%exercise {self.name}\n{self.stub}"
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from workshop.exercises.engine.prose import code_block, paragraph

        shown = paragraph(f"{self.title}.".replace("?.", "?")) + paragraph(self.question)
        return shown + code_block(f"%%exercise {self.name}\n{self.stub}")


@dataclass(frozen=True, repr=False)
class Solution:
    """The reference solution of an exercise; shows its source as text and as HTML."""

    name: str
    source: str

    def __str__(self) -> str:
        return f"# The reference solution of {self.name}\n{self.source}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from workshop.exercises.engine.prose import code_block

        return code_block(str(self))
