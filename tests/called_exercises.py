"""What the learner wrote is what the following cells run: seen, not read, while nbval executes the lessons.

Each kernel of the run finds a startup file. After an ``%%exercise`` cell it puts a marked function in the place of
each that the exercise binds: one that notes its call and then does what it stands for. It is bound as the learner's
own is, and travels to ranks as it does. At the end every exercise of a lesson that ran to its last cell must have
been called by a cell below its own. A missing call fails the run.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

FOLDER = "CALLED_EXERCISES"

STARTUP = """
import functools as _functools
import os as _os


def _note_calls(result):
    cell = result.info.raw_cell or ""
    if not cell.startswith("%%exercise ") or not result.success:
        return
    from workshop.exercises import find

    exercise, folder = find(cell.split()[1]), _os.environ["CALLED_EXERCISES"]
    for name in exercise.defines:
        if callable(function := get_ipython().user_ns.get(name)):
            path = _os.path.join(folder, f"{_os.getcwd().replace(_os.sep, '+')}:{exercise.name}:{name}")
            get_ipython().user_ns[name] = _marked(function, path)


def _marked(function, path):
    @_functools.wraps(function)
    def called(*values, **words):
        open(path, "w").close()
        return function(*values, **words)

    return called


get_ipython().events.register("post_run_cell", _note_calls)
"""


def start(environ: dict[str, str] | os._Environ[str]) -> None:
    """Have the kernels that this process and its workers start note calls; once, by whoever is first."""
    if FOLDER in environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="workshop-calls-"))
    startup = folder / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "note_calls.py").write_text(STARTUP)
    environ["IPYTHONDIR"] = str(folder / "ipython")
    environ[FOLDER] = str(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def missing(notebooks: Iterable[Path], folder: Path) -> list[str]:
    """``lesson: function`` for each that no cell below its exercise has called."""
    from workshop.exercises import find

    marks = {path.name for path in folder.iterdir()}
    found = []
    for notebook in notebooks:
        place = str(notebook.parent).replace(os.sep, "+")
        for name in exercises_in(notebook):
            found += [
                f"{notebook.stem}: {function}, of the exercise {name}"
                for function in find(name).defines
                if f"{place}:{name}:{function}" not in marks
            ]
    return found


def exercises_in(notebook: Path) -> list[str]:
    """Names of the notebook's exercises, in order."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    firsts = ["".join(cell["source"]).partition("\n")[0] for cell in cells if cell["cell_type"] == "code"]
    return [first.split()[1] for first in firsts if first.startswith("%%exercise ")]


class CalledExercises:
    """Follows the lessons of a run; the controller's alone has all reports."""

    def __init__(self) -> None:
        self.cells: dict[Path, set[str]] = {}
        self.problems: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember which cells of which lesson went well."""
        file, _, cell = report.nodeid.partition("::")
        if report.when == "call" and report.passed and file.endswith(".ipynb"):
            self.cells.setdefault(Path(file), set()).add(cell)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run in which a lesson does not call what its learner writes."""
        if hasattr(session.config, "workerinput"):  # a worker of xdist: its reports are the controller's
            return
        root = session.config.rootpath
        whole = [root / file for file, cells in self.cells.items() if len(cells) == num_cells(root / file)]
        self.problems = missing(whole, Path(os.environ[FOLDER]))
        if self.problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name what nobody called."""
        if self.problems:
            terminalreporter.section("exercises that no later cell calls", red=True)
            for line in self.problems:
                terminalreporter.line(line)


def num_cells(notebook: Path) -> int:
    """Cells of code, each of which is a test of nbval's."""
    cells: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return sum(cell["cell_type"] == "code" for cell in cells)
