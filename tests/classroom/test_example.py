"""The instructor's notebook: its halves agree, and its cells show a room without one being there."""

from pathlib import Path

import nbformat
from IPython.utils.capture import capture_output

from tests.jupyter.test_exercise import new_shell
from tools.rules import pairing_problems
from workshop.classroom.example import NAMES, example_room
from workshop.classroom.view import look

FOLDER = Path(__file__).parents[2] / "examples" / "instructor"


def test_the_halves_agree():
    assert pairing_problems(FOLDER) == []


def test_its_cells_show_a_room(monkeypatch):
    monkeypatch.delenv("WORKSHOP_ROOM", raising=False)
    shell, shown = new_shell(), []
    for cell in nbformat.read(FOLDER / "room.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            with capture_output() as captured:
                shell.run_cell(cell.source).raise_error()
            shown.append(captured.stdout + str(captured.outputs))
    assert "10 learners" in "".join(shown)
    assert "Five minutes more" in shown[-1]


def test_the_example_is_a_room_like_any(tmp_path):
    view = look(example_room(tmp_path / "room", 1.7e9), 1.7e9)
    assert sorted(one.state.name for one in view.learners) == sorted(NAMES)
    assert view.refused == []
    assert {one.state.name for one in view.learners if one.state.doctor.faults} == {"Ken"}
    assert all(one.solved <= one.tried for one in view.statistics())
