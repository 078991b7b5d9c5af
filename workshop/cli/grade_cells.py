"""In the grader's sandbox: run the notebook that lies here, cell by cell, and tell which cells fail.

    python -m workshop.cli.grade_cells

A cell that fails does not end it: the next is run all the same, as the grader wants to know of each.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from workshop.classroom.grading.sandbox import CONNECTION
from workshop.classroom.grading.wire import send_message
from workshop.cli.notebook_run import own_kernel_manager

CELL_SECONDS = 600


def failing_cells(notebook: NotebookNode) -> list[tuple[int, str]]:
    """(number, error) of each cell that raised and carries no tag that it may."""
    failing = []
    for number, cell in enumerate(notebook.cells):
        tags = cell.get("metadata", {}).get("tags", [])
        if cell.cell_type != "code" or "raises-exception" in tags:
            continue
        errors = [output for output in cell.outputs if output.output_type == "error"]
        if errors:
            failing.append((number, f"{errors[0].ename}: {errors[0].evalue}"[:300]))
    return failing


def main() -> int:
    """Run it."""
    with socket.socket(fileno=int(os.environ.pop(CONNECTION))) as end:
        notebook = nbformat.read("notebook.ipynb", as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = []
        with tempfile.TemporaryDirectory(prefix="workshop-") as sockets:
            manager = own_kernel_manager(Path(sockets))
            client = NotebookClient(
                notebook, km=manager, timeout=CELL_SECONDS, allow_errors=True,
                resources={"metadata": {"path": str(Path.cwd())}},
            )  # fmt: skip
            client.execute()
        cells = sum(cell.cell_type == "code" for cell in notebook.cells)
        send_message(end, {"cells": cells, "failing": failing_cells(notebook)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
