"""A lesson gives its exercises as they are kept here, and its later cells run what the learner wrote."""

import json
import re
from pathlib import Path

import pytest

from workshop.exercises import all_exercises

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").rglob("*.ipynb"))
STUBS = {exercise.name: exercise.stub for exercise in all_exercises()}


def code_of(notebook):
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def exercises_in(notebook):
    """(name, stub) of each `%%exercise` cell, in order."""
    for source in code_of(notebook):
        first, _, body = source.partition("\n")
        if first.startswith("%%exercise "):
            yield first.split()[1], body


def strangers(notebook):
    """Names of the `%%exercise` cells of a notebook that do not hold the stub kept under that name."""
    return [name for name, stub in exercises_in(notebook) if STUBS.get(name, "").strip() != stub.strip()]


def later_cells(exercise, notebook):
    """The code below an exercise."""
    cells = code_of(notebook)
    return cells[next(i for i, cell in enumerate(cells) if cell.split()[1:2] == [exercise.name]) + 1 :]


def rebinds(name, cell):
    """Whether a cell puts something else under a name: then the cells after it no longer run the learner's."""
    return (
        re.search(rf"^\s*def {name}\(|^{name} *=[^=]|^\s*(from .*)?import .*\b{name}\b", cell, re.M)
        is not None
    )


def lesson(stem):
    (path,) = [path for path in NOTEBOOKS if path.stem == stem]
    return json.loads(path.read_text(encoding="utf-8"))


def notebook_with(source):
    return {"cells": [{"cell_type": "code", "source": source.splitlines(keepends=True)}]}


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in NOTEBOOKS])
def test_the_lessons_hold_the_stubs_in_their_places(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert strangers(notebook) == []
    kept = [exercise.name for exercise in all_exercises() if exercise.lesson == path.stem]
    assert [name for name, _ in exercises_in(notebook)] == kept


def test_a_changed_stub_and_an_unknown_name_are_found():
    stub = STUBS["ring_bytes"]
    assert strangers(notebook_with(f"%%exercise ring_bytes\n{stub}")) == []
    assert strangers(notebook_with(f"%%exercise ring_bytes\n{stub}# more\n")) == ["ring_bytes"]
    assert strangers(notebook_with(f"%%exercise ring_byte\n{stub}")) == ["ring_byte"]


@pytest.mark.parametrize("exercise", all_exercises(), ids=lambda exercise: exercise.name)
def test_no_later_cell_puts_something_else_under_the_name(exercise):
    for name in exercise.defines:
        assert not [cell for cell in later_cells(exercise, lesson(exercise.lesson)) if rebinds(name, cell)]


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("def f(x): 0", True),
        ("f = 3", True),
        ("from workshop.parallel import f", True),
        ("%%torchrun -n 2\nimport f", True),
        ("assert f == f(1)\nprint(f)\nhalf = 2\n%%torchrun -n 2 --pass f", False),
    ],
)
def test_what_puts_something_else_under_a_name(cell, found):
    assert rebinds("f", cell) == found


@pytest.mark.parametrize("exercise", all_exercises(), ids=lambda exercise: exercise.name)
def test_a_later_cell_calls_what_the_learner_wrote(exercise):
    text = "\n".join(later_cells(exercise, lesson(exercise.lesson)))
    called = [name for name in exercise.defines if re.search(rf"\b{name}\(|--pass \S*\b{name}\b", text)]
    assert called == list(exercise.defines)
