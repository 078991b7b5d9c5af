"""`%%exercise NAME`, `%exercise NAME --hint` and `%progress`: parse, ask the lessons, show.

A cell that is not solved never stops the notebook; a name or a flag that does not exist does, with an
ordinary exception.
"""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from workshop.jupyter.flags import explain_errors, show_as_sentence
from workshop.lessons import all_exercises, find, solution
from workshop.lessons.feedback import ProgressTable, answer, next_hint
from workshop.lessons.progress import Progress, progress_file
from workshop.lessons.prose import paragraph


@magics_class
class ExerciseMagics(Magics):
    """The exercise magics of one notebook, with its progress."""

    def __init__(self, shell: Any):
        super().__init__(shell)
        self.namespace: dict[str, Any] = shell.user_ns
        self.attempts = Progress(progress_file())

    @explain_errors("%%exercise")
    @line_cell_magic
    @magic_arguments()
    @argument("name", nargs="?", default="", help="the exercise's name; %%progress lists them all")
    @argument("--hint", action="store_true", help="give the next hint")
    @argument("--solution", action="store_true", help="show the reference solution")
    @argument("--reset", action="store_true", help="forget tries and hints")
    def exercise(self, line: str, cell: str | None = None) -> None:
        """Check the cell as an answer; without a cell, show the question, a hint or a solution."""
        options = parse_argstring(self.exercise, line)
        chosen = find(options.name)
        if options.reset:
            self.attempts.reset(chosen.name)
        if options.hint:
            display(Said(next_hint(chosen, self.attempts)))
        if options.solution:
            display(solution(chosen.name))
        if cell is not None:
            display(answer(chosen, cell, self.namespace, self.attempts))
        elif not (options.hint or options.solution):
            display(chosen)
        for sentence in self.attempts.complaints():
            display(Said(sentence))

    @line_magic
    def progress(self, line: str) -> None:
        """All exercises by day, and how far each is."""
        if line.strip():
            error = ValueError(f"%progress takes no argument; for one exercise, %exercise {line.strip()}")
            show_as_sentence(error)
            raise error
        display(ProgressTable(all_exercises(), self.attempts))
        for sentence in self.attempts.complaints():
            display(Said(sentence))


class Said:
    """One sentence, as text and as HTML."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return paragraph(self.text)
