"""A lesson that does not run what its learner wrote makes the run red (`tests.called_exercises`)."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from workshop.exercises import find

ROOT = Path(__file__).parents[2]
CONFTEST = """
import os
from tests import called_exercises

os.environ.pop(called_exercises.FOLDER, None)
called_exercises.start(os.environ)


def pytest_configure(config):
    config.pluginmanager.register(called_exercises.CalledExercises())
"""


@pytest.mark.parametrize(("last", "red"), [("ring_bytes(8.0, 4)", False), ("print(ring_bytes)", True)])
def test_a_lesson_that_calls_it_is_green_and_one_that_does_not_is_red(
    tmp_path: Path, last: str, red: bool
) -> None:
    cells = ["%load_ext workshop", f"%%exercise ring_bytes\n{find('ring_bytes').stub}", last]
    notebook = new_notebook(cells=[new_code_cell(source) for source in cells])
    nbformat.write(notebook, tmp_path / "99_own.ipynb")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    nbval = ("--nbval-lax", "--nbval-current-env", "-p", "no:cacheprovider", "99_own.ipynb")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *nbval],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
    assert (done.returncode != 0) == red, done.stdout
    assert ("99_own: ring_bytes, of the exercise ring_bytes" in done.stdout) == red
