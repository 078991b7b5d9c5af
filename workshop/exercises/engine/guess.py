"""Guesses: what a learner expects of a run, asked before it, kept, and laid beside what then happens.

A guess is a number, one of some choices, or a curve (a number for each of some points). ``%%guess NAME`` asks
for it; a cell below calls `beside` with what the formula says and what was measured, and shows the three
together. Nobody has to answer: a cell that is left as it is keeps nothing, and the comparison has one row
less.

Guesses stay in ``guesses.json`` beside the progress (`engine.progress.progress_file`), where ``%progress``
finds them. Where no progress is kept, neither are they.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from workshop.exercises.engine.progress import progress_file, replace_whole
from workshop.exercises.engine.prose import paragraph, table
from workshop.facts.short_repr import short_repr

Value = float | str | tuple[float, ...]


@dataclass(frozen=True)
class Question:
    """What was asked.

    choices: the words to choose from; points: what a curve has a number for; without either it is one number.
    """

    name: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    points: tuple[str, ...] = ()

    def read(self, value: Any) -> Value:
        """``value`` as an answer to this question.

        Raises:
            ValueError: it is not of the kind that was asked for; says what is.
        """
        if self.choices:
            if value not in self.choices:
                near = get_close_matches(str(value), self.choices, 1)
                meant = f" Did you mean {near[0]!r}?" if near else ""
                raise ValueError(
                    f"{self.name}: {value!r} is none of the choices.{meant} "
                    f"Known: {', '.join(map(repr, self.choices))}."
                )
            return str(value)
        if not self.points:
            return self._number(value)
        numbers = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        if len(numbers) != len(self.points):
            raise ValueError(
                f"{self.name}: a number for each of {', '.join(self.points)}: "
                f"{len(self.points)} numbers, not {len(numbers)}."
            )
        return tuple(map(self._number, numbers))

    def _number(self, value: Any) -> float:
        try:
            number = float(value) if isinstance(value, int | float) else math.nan
        except OverflowError:  # 10**400
            number = math.inf
        if isinstance(value, bool) or not math.isfinite(number):
            wanted = f"a number{f' of {self.unit}' if self.unit else ''}"
            raise ValueError(
                f"{self.name}: the last line must be {wanted}, or `...`; it is {short_repr(value, 80)}."
            )
        return number

    def shown(self, value: Value | None) -> list[str]:
        """The value as texts: one, or one for each point; empty where there is none."""
        if value is None:
            return [""] * max(1, len(self.points))
        if isinstance(value, tuple):
            return [_digits(number, self.unit) for number in value]
        return [value if isinstance(value, str) else _digits(value, self.unit)]


def _digits(number: float, unit: str) -> str:
    return f"{number:,.4g} {unit}".rstrip() if abs(number) < 1e4 else f"{number:,.0f} {unit}".rstrip()


class Guesses:
    """Guesses by question, and what was then measured. ``path=None`` keeps them in memory only."""

    def __init__(self, path: Path | None):
        self.path = path
        self.questions: dict[str, Question] = {}
        self._kept: dict[str, dict[str, Any]] = {}

    def ask(self, question: Question, value: Any) -> Value | None:
        """Keep an answer; None where it is left as ``...``, and then an earlier answer stays.

        Raises:
            ValueError: the answer is not of the kind that was asked for.
        """
        self.questions[question.name] = question
        if value is ...:
            return None
        answer = question.read(value)
        self._read()
        self._kept[question.name] = {"guess": answer}
        self._write()
        return answer

    def beside(
        self, name: str, measured: Any = None, predicted: Any = None, *, calculated: Any = None
    ) -> ThreeWays:
        """What was guessed, predicted and measured, side by side; the guess is kept with what was measured.

        calculated: in place of ``measured``, for what no run showed, such as bytes on 1,024 GPUs.

        Raises:
            ValueError: no question of that name was asked here, a value is not of its kind, or there is not
                exactly one of ``measured`` and ``calculated``.
        """
        if (measured is None) == (calculated is None):
            raise ValueError(f"{name}: a guess is laid beside either measured=... or calculated=...")
        if name not in self.questions:
            known = ", ".join(self.questions) or "none"
            raise ValueError(f"no %%guess is called {name!r}; asked in this notebook: {known}.")
        question = self.questions[name]
        self._read()
        row = self._kept.get(name, {})
        guess = question.read(_as_read(row["guess"])) if "guess" in row else None
        known_by = "calculated" if measured is None else "measured"
        truth = question.read(calculated if measured is None else measured)
        if guess is not None:
            kept = {"guess": row["guess"], "measured": truth, "unit": question.unit}
            self._kept[name] = kept if known_by == "measured" else {**kept, "known_by": known_by}
            self._write()
        expected = None if predicted is None else question.read(predicted)
        return ThreeWays(question, guess, expected, truth, known_by)

    def kept(self) -> dict[str, dict[str, Any]]:
        """Every guess as it is kept: ``{"guess": ..., "measured": ..., "unit": ...}`` by name, as of now.

        A row with ``"known_by": "calculated"`` holds under ``"measured"`` what was only calculated.
        """
        self._read()
        return dict(self._kept)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """(name, yours, measured, how far off) of each guess that was compared, for ``%progress``."""
        self._read()
        rows = []
        for name, row in self._kept.items():
            if "measured" in row:
                question = Question(name, row.get("unit", ""))
                guess, measured = _as_read(row["guess"]), _as_read(row["measured"])
                yours, happened = (", ".join(question.shown(value)) for value in (guess, measured))
                known_by = f" ({row['known_by']})" if "known_by" in row else ""
                rows.append((name, yours, happened + known_by, off_by(guess, measured)))
        return rows

    def _read(self) -> None:
        if self.path is None:
            return
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            self._kept = {name: dict(row) for name, row in kept.items()}
        except FileNotFoundError:
            return
        except (
            OSError,
            ValueError,
            AttributeError,
            TypeError,
        ):  # not ours any more: the lesson goes on without
            self.path = None

    def _write(self) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_whole(self.path, json.dumps(self._kept, indent=1) + "\n")
        except OSError:  # a disk that is full costs the memory, never the lesson
            self.path = None


def _as_read(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def off_by(guess: Value, measured: Value) -> str:
    """How far a guess is from what was measured, in words.

    >>> off_by(6.0, 3.0), off_by(1.0, 4.0), off_by(2.0, 2.0), off_by("rises", "falls")
    ('2.0 times too much', '4.0 times too little', 'right', 'not so')
    """
    if isinstance(guess, str) or isinstance(measured, str):
        return "right" if guess == measured else "not so"
    if isinstance(guess, tuple) and isinstance(measured, tuple):
        return ", ".join(off_by(one, other) for one, other in zip(guess, measured, strict=True))
    assert not isinstance(guess, tuple)
    assert not isinstance(measured, tuple)
    if guess == measured:
        return "right"
    if guess * measured <= 0:
        return "off by the sign" if guess * measured < 0 else "one of the two is zero"
    factor = guess / measured
    if abs(factor - 1) < 0.05:
        return "within 5 %"
    return f"{factor:.1f} times too much" if factor > 1 else f"{1 / factor:.1f} times too little"


@dataclass(frozen=True, repr=False)
class ThreeWays:
    """Yours, predicted, and what it was: as text, and as a table in a notebook.

    known_by: how ``truth`` is known, "measured" or "calculated".
    """

    question: Question
    guess: Value | None
    predicted: Value | None
    truth: Value
    known_by: str = "measured"

    def rows(self) -> list[list[str]]:
        """A row for each of the three that there is, the texts of its points in the columns."""
        rows = []
        if self.guess is not None:
            off = "" if self.question.points else off_by(self.guess, self.truth)
            rows.append(["yours", *self.question.shown(self.guess), off])
        if self.predicted is not None:
            rows.append(["predicted", *self.question.shown(self.predicted), ""])
        return [*rows, [self.known_by, *self.question.shown(self.truth), ""]]

    def head(self) -> list[str]:
        """The columns' names."""
        return [self.question.name, *(self.question.points or ("",)), ""]

    def __repr__(self) -> str:
        lines = ([self.head()] if self.question.points else []) + self.rows()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        return table(self.head(), self.rows())


@dataclass(frozen=True, repr=False)
class Asked:
    """What ``%%guess`` shows: the question, and what was understood."""

    question: Question
    text: str
    answer: Value | None

    def __repr__(self) -> str:
        return f"{self.text}\n{self._state()}"

    def _state(self) -> str:
        if self.answer is not None:
            yours = ", ".join(self.question.shown(self.answer))
            return f"Your guess: {yours}. It is kept for the comparison below."
        form = "a number"
        if self.question.choices:
            form = " or ".join(map(repr, self.question.choices))
        elif self.question.points:
            form = f"a list with a number for each of {', '.join(self.question.points)}"
        unit = f" (in {self.question.unit})" if self.question.unit else ""
        return f"No guess yet: write {form}{unit} in place of the dots. The cells below run without it, too."

    def _repr_html_(self) -> str:
        return paragraph(self.text) + paragraph(self._state())


def split_cell(cell: str, names: dict[str, Any], choices: Sequence[str] = ()) -> tuple[str, Any]:
    """A ``%%guess`` cell's question (its comments), and the value of its last line, evaluated in ``names``.

    A line that is one of ``choices`` is that choice: the words need no quotes.

    Raises:
        ValueError: there is no such line, or more than one, or it cannot be evaluated.
    """
    lines = [line.strip() for line in cell.strip().splitlines()]
    text = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    answers = [line for line in lines if line and not line.startswith("#")]
    if len(answers) != 1:
        raise ValueError(
            f"a %%guess cell ends in one line with the guess, or with `...`; here are {len(answers)}."
        )
    if answers[0] in choices:
        return text, answers[0]
    try:
        return text, eval(compile(answers[0], "<guess>", "eval"), names)
    except Exception as error:  # noqa: BLE001 whatever a learner's expression raises is told to them
        raise ValueError(f"the guess {answers[0]!r} has no value: {type(error).__name__}: {error}") from None


def guesses_file(environ: Mapping[str, str] | None = None) -> Path | None:
    """Where guesses are kept; None where progress is not kept either."""
    progress = progress_file() if environ is None else progress_file(environ)
    return progress and progress.with_name("guesses.json")


GUESSES = Guesses(None)
"""Those of this notebook; its magics say where they are kept."""


def beside(name: str, measured: Any = None, predicted: Any = None, *, calculated: Any = None) -> ThreeWays:
    """The guess of that name beside what was predicted, and measured or calculated; see `Guesses.beside`."""
    return GUESSES.beside(name, measured, predicted, calculated=calculated)
