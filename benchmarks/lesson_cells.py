"""The first cells of a lesson, executed with cells of one's own between them: what a learner reads runs.

done = executed(LESSON, "by_rate = rates_of(0)", {"by_rate = rates_of(0)": "print(rates_of(1))"})
done.cells[-1].outputs
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

LESSONS = Path(__file__).parents[1] / "notebooks"


def executed(lesson: Path, last: str, added: Mapping[str, str], seconds: int = 600) -> NotebookNode:
    """The lesson up to a cell, executed; a cell that fails does not end it: it may assert of the page alone.

    Args:
        lesson: its notebook.
        last: a piece of the last cell's text.
        added: by a piece of a cell's text, the cell that is put behind that one.
        seconds: what a cell may take.

    Raises:
        ValueError: No cell has such a piece.
    """
    notebook = nbformat.read(lesson, as_version=4)
    end = _place(notebook.cells, last, lesson)
    cells = list(notebook.cells[: end + 1])
    for piece, source in added.items():
        cells.insert(_place(cells, piece, lesson) + 1, nbformat.v4.new_code_cell(source))
    notebook.cells = cells
    client = NotebookClient(notebook, timeout=seconds, allow_errors=True)
    return client.execute(cwd=str(lesson.parent))


def _place(cells: list[NotebookNode], piece: str, lesson: Path) -> int:
    for place, cell in enumerate(cells):
        if cell.cell_type == "code" and piece in cell.source:
            return place
    raise ValueError(f"{lesson.name} has no cell with {piece!r}: the lesson has changed")
