"""`%%exercise NAME`, `%exercise NAME --hint`, `%%guess NAME` and `%progress`: parse, ask the exercises, show.

A cell that is not solved never stops the notebook; a name or a flag that does not exist does, with an
ordinary exception.
"""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from workshop.exercises import all_exercises, find, solution
from workshop.exercises.engine.feedback import ProgressTable, answer, next_hint
from workshop.exercises.engine.guess import GUESSES, Asked, Question, guesses_file, split_cell
from workshop.exercises.engine.progress import Progress, progress_file
from workshop.exercises.engine.prose import paragraph
from workshop.jupyter.flags import explain_errors, read_flags, show_as_sentence


@magics_class
class ExerciseMagics(Magics):
    """The exercise magics of one notebook, with its progress."""

    def __init__(self, shell: Any):
        super().__init__(shell)
        self.namespace: dict[str, Any] = shell.user_ns
        self.attempts = Progress(progress_file())
        GUESSES.path = guesses_file()

    @explain_errors("%%exercise")
    @line_cell_magic
    @magic_arguments()
    @argument("name", nargs="?", default="", help="the exercise's name; %%progress lists them all")
    @argument("--hint", action="store_true", help="give the next hint")
    @argument("--solution", action="store_true", help="show the reference solution")
    @argument("--reset", action="store_true", help="forget tries and hints")
    def exercise(self, line: str, cell: str | None = None) -> None:
        """Check the cell as an answer; without a cell, show the question, a hint or a solution."""
        options = read_flags(self.exercise, line)
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

    @explain_errors("%%guess")
    @cell_magic
    @magic_arguments()
    @argument("name", help="what the guess is called in the comparison")
    @argument("--unit", default="", help="of the number, or of the numbers")
    @argument("--choices", default="", metavar="A,B", help="the guess is one of these words")
    @argument("--points", default="", metavar="A,B", help="the guess is a curve: a number for each of these")
    def guess(self, line: str, cell: str) -> None:
        """Keep what you expect, before it runs: comments ask, the last line is your guess, or `...`."""
        options = read_flags(self.guess, line)
        question = Question(options.name, options.unit, words(options.choices), words(options.points))
        text, value = split_cell(cell, self.namespace, question.choices)
        display(Asked(question, text, GUESSES.ask(question, value)))

    @line_magic
    def progress(self, line: str) -> None:
        """All exercises by day, and how far each is; your guesses, and how far off each was."""
        if line.strip():
            error = ValueError(f"%progress takes no argument; for one exercise, %exercise {line.strip()}")
            show_as_sentence(error)
            raise error
        display(ProgressTable(all_exercises(), self.attempts, GUESSES.rows()))
        for sentence in self.attempts.complaints():
            display(Said(sentence))


def words(text: str) -> tuple[str, ...]:
    """``"rises,falls"`` as two words; quotes around the whole are for words with blanks."""
    return tuple(word.strip() for word in text.strip("\"'").split(",") if word.strip())


class Said:
    """One sentence, as text and as HTML."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return paragraph(self.text)
