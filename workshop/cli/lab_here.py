"""``workshop lab`` on this machine: working copies of lessons, the first one in the terminal, JupyterLab.

The lessons come with the package: a clone has them beside it, a wheel inside it (`facts.tree`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode

from workshop.cli import server
from workshop.cli.lessons_index import write_index
from workshop.cli.notebook_run import plain_text, run_notebook
from workshop.cli.working_copies import Laid, is_untouched, lay_working_copies
from workshop.facts.tree import DISTRIBUTION, FROM_WHEEL, ROOT

WELCOME = "day0_welcome/00_welcome.ipynb"
_INDENT = "    "


def run(options: argparse.Namespace) -> int:
    """The command, where it is for no job."""
    lessons = find_lessons()
    beside = Path.cwd() if FROM_WHEEL else lessons.parent  # what is installed is nobody's place to work in
    folder = (options.dir or beside / "lab").resolve()
    report(lay_working_copies(lessons, folder), folder)
    print(f"lab: all lessons, their minutes and what you have solved: {write_index(folder)}", flush=True)
    if options.copies_only:
        return 0
    if options.welcome_only:
        return run_welcome(lessons, folder)
    at = server.Reached(options.tunnel or "", server.node_address() if options.network else server.LOOPBACK)
    return server.serve(folder, options.port, not options.no_browser, WELCOME, at)


def find_lessons() -> Path:
    """The folder of the published lessons: the package's, or in the current directory.

    Raises:
        FileNotFoundError: There is none, as where the package alone was copied.
    """
    ours = ROOT / "notebooks"
    for folder in (ours, Path.cwd() / "notebooks"):
        if (folder / WELCOME).is_file():
            return folder
    raise FileNotFoundError(
        f"the lessons are neither at {ours} nor in ./notebooks: install the wheel of {DISTRIBUTION}, or "
        "clone the repository and run `make lab` in it"
    )


def report(done: list[Laid], folder: Path) -> None:
    """Say in a line or two what was laid."""
    counts = {what: sum(entry.what == what for entry in done) for what in ("new", "refreshed", "kept")}
    counted = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    print(f"lab: your working copies are in {folder} ({counted or 'nothing new'})", flush=True)
    for entry in done:
        if entry.what == "beside":
            name = entry.path.relative_to(folder)
            print(
                f"lab: you wrote in this lesson and it has changed since; the new version is {name}",
                flush=True,
            )


def run_welcome(lessons: Path, folder: Path) -> int:
    """Run the first lesson here, print what it prints, and keep its outputs in an untouched copy."""
    notebook = nbformat.read(lessons / WELCOME, as_version=4)
    copy = folder / WELCOME
    try:
        run_notebook(notebook, copy.parent, on_cell=_Terminal().show)
    except (CellExecutionError, CellTimeoutError) as error:
        print(f"\nlab: the first lesson failed on this machine.\n{error}", file=sys.stderr)
        print(f"lab: `{sys.executable} -m workshop doctor` says what is missing", file=sys.stderr)
        return 1
    if is_untouched(folder, WELCOME):
        nbformat.write(notebook, copy)
    print("\nlab: the first lesson ran to its end on this machine", flush=True)
    return 0


class _Terminal:
    """Shows code, outputs, and the headings of sections that have any."""

    def __init__(self) -> None:
        self._headings: list[str] = []

    def show(self, cell: NotebookNode) -> None:
        if cell.cell_type == "markdown":
            self._headings += [line.lstrip("# ") for line in cell.source.splitlines() if line.startswith("#")]
        elif cell.cell_type == "code":
            for heading in self._headings:
                print(f"\n{heading}\n{'-' * len(heading)}")
            self._headings = []
            for line in cell.source.splitlines():
                print(f"{_INDENT}{line}".rstrip())
            print(plain_text(cell.outputs), flush=True)
