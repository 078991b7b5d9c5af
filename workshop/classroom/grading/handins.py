"""What was handed in: notebooks in a folder, each with its learner and assignment, read as data.

Three ways to lie are known: ``LEARNER/ASSIGNMENT/NAME.ipynb`` (nbgrader's ``submitted``),
``LEARNER/NAME.ipynb``, and ``NAME.ipynb`` alone, which is its own learner. An assignment is a lesson: its
name is the notebook's, as ``22_ddp``. Of a notebook are taken the ``%%exercise`` cells, what stands above
each in plain Python, and the verdicts that were stored with it; nothing is run here.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workshop.exercises import all_exercises
from workshop.exercises.engine.exercise import Exercise

MOST_BYTES = 64 << 20
_ANSWER = re.compile(r"\A\s*%%exercise[ \t]+([A-Za-z0-9_]+)[^\n]*\n?", re.ASCII)
_VERDICT = re.compile(r"^(\w+): (right|not right|not solved yet)\.", re.MULTILINE)
_STATES = {"right": "right", "not right": "wrong", "not solved yet": "unsolved"}


@dataclass(frozen=True)
class HandIn:
    """One notebook of one learner."""

    learner: str
    assignment: str
    path: Path

    @property
    def exercises(self) -> list[Exercise]:
        """Those of the lesson that it is; ValueError where it is no lesson's."""
        exercises = [exercise for exercise in all_exercises() if exercise.lesson == self.assignment]
        if not exercises:
            known = ", ".join(dict.fromkeys(exercise.lesson for exercise in all_exercises()))
            raise ValueError(
                f"{self.path}: no lesson with exercises is called {self.assignment!r}; known: {known}"
            )
        return exercises


@dataclass(frozen=True)
class Answered:
    """One exercise cell: its source, the verdict stored below it, and the plain cells above."""

    source: str
    stored: str  # "right", "wrong", "unsolved", or "" where none is stored
    above: tuple[str, ...]


def find_hand_ins(place: Path) -> list[HandIn]:
    """All of a folder, or the one notebook; by learner and assignment.

    Raises:
        ValueError: there is none.
    """
    if place.is_file():
        return [HandIn(place.resolve().parent.name or place.stem, place.stem, place)]
    paths = [path for path in sorted(place.rglob("*.ipynb")) if _is_handed_in(path, place)]
    if not paths:
        raise ValueError(f"{place}: no notebook (*.ipynb) in it")
    return [HandIn(_learner(path, place), path.stem, path) for path in paths]


def _is_handed_in(path: Path, place: Path) -> bool:
    inside = path.relative_to(place).parts
    if len(inside) > 3 or any(part.startswith(".") for part in inside):
        return False
    on_the_way = [place.joinpath(*inside[: depth + 1]) for depth in range(len(inside))]
    return path.is_file() and not any(each.is_symlink() for each in on_the_way)


def _learner(path: Path, place: Path) -> str:
    inside = path.relative_to(place).parts
    return inside[0] if len(inside) > 1 else path.stem


def read_notebook(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook, each with a source and outputs, and nothing believed.

    Raises:
        ValueError: it is no notebook, or longer than 64 MiB.
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path}: more than {MOST_BYTES >> 20} MiB")
    try:
        cells = json.loads(content)["cells"]
        return [_cell(cell) for cell in cells]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: no notebook ({type(error).__name__})") from None


def _cell(cell: dict[str, Any]) -> dict[str, Any]:
    outputs = cell.get("outputs") or []
    return {"kind": str(cell["cell_type"]), "source": _text(cell["source"]), "outputs": list(outputs)}


def _text(source: Any) -> str:
    return source if isinstance(source, str) else "".join(map(str, source))


def answers_in(cells: Sequence[dict[str, Any]]) -> dict[str, Answered]:
    """The last cell of each exercise that is in the notebook."""
    answers, above = {}, list[str]()
    for cell in cells:
        if cell["kind"] != "code":
            continue
        if match := _ANSWER.match(cell["source"]):
            name = match.group(1)
            answers[name] = Answered(cell["source"][match.end() :], _stored(cell, name), tuple(above))
        elif not cell["source"].lstrip().startswith("%"):
            above.append(cell["source"])
    return answers


def _stored(cell: dict[str, Any], name: str) -> str:
    for output in cell["outputs"]:
        data = output.get("data", {}) if isinstance(output, dict) else {}
        text = _text(data.get("text/plain", "")) if isinstance(data, dict) else ""
        for exercise, state in _VERDICT.findall(text):
            if exercise == name:
                return _STATES[state]
    return ""


def stands_on(source: str, above: Sequence[str]) -> str:
    """Imports and definitions from the cells above that an answer uses, themselves and what they use in turn.

    In the notebook an answer sees every name of the cells above it. Here only what it names is run before it:
    a trial call, a training or a picture in between is not.
    """
    bound: dict[str, ast.stmt] = {}
    order: dict[int, int] = {}
    for text in above:
        for made in _statements(text):
            order[id(made)] = len(order)
            bound.update(dict.fromkeys(_bound_by(made), made))
    wanted, waiting = dict[int, ast.stmt](), list(_names_in(source))
    while waiting:
        statement = bound.get(waiting.pop())
        if statement is not None and id(statement) not in wanted:
            wanted[id(statement)] = statement
            waiting += _names_in(ast.unparse(statement))
    chosen = sorted(wanted.values(), key=lambda each: order[id(each)])
    return "\n".join(map(ast.unparse, chosen))


def _statements(text: str) -> Iterator[ast.stmt]:
    plain = "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in text.splitlines())
    try:
        yield from ast.parse(plain).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return


def _bound_by(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(name.asname or name.name).partition(".")[0] for name in statement.names]
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return []


def _names_in(source: str) -> set[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
