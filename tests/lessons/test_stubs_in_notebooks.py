"""A lesson gives the exercise as it is kept here: same name, same stub."""

import json
from pathlib import Path

import pytest

from workshop.lessons import all_exercises

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").rglob("*.ipynb"))
STUBS = {exercise.name: exercise.stub for exercise in all_exercises()}


def strangers(notebook):
    """Names of the `%%exercise` cells of a notebook that do not hold the stub kept under that name."""
    found = []
    for cell in notebook["cells"]:
        first, _, body = "".join(cell["source"]).partition("\n")
        if cell["cell_type"] == "code" and first.startswith("%%exercise "):
            name = first.split()[1]
            if STUBS.get(name, "").strip() != body.strip():
                found.append(name)
    return found


def notebook_with(source):
    return {"cells": [{"cell_type": "code", "source": source.splitlines(keepends=True)}]}


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in NOTEBOOKS])
def test_the_lessons_hold_the_stubs(path):
    assert strangers(json.loads(path.read_text(encoding="utf-8"))) == []


def test_a_changed_stub_and_an_unknown_name_are_found():
    stub = STUBS["ring_bytes"]
    assert strangers(notebook_with(f"%%exercise ring_bytes\n{stub}")) == []
    assert strangers(notebook_with(f"%%exercise ring_bytes\n{stub}# more\n")) == ["ring_bytes"]
    assert strangers(notebook_with(f"%%exercise ring_byte\n{stub}")) == ["ring_byte"]
