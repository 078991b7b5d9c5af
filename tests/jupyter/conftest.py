"""A notebook in a real kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import nbclient
import nbformat
import pytest


@pytest.fixture
def run(tmp_path):
    """Run cells in a fresh notebook; returns the cells with their outputs."""

    def run_cells(*sources: str) -> list[nbformat.NotebookNode]:
        cells = [nbformat.v4.new_code_cell(source) for source in ("%load_ext workshop", *sources)]
        notebook = nbformat.v4.new_notebook(cells=cells)
        resources = {"metadata": {"path": str(tmp_path)}}
        client = nbclient.NotebookClient(
            notebook, timeout=60, allow_errors=True, kernel_name="python3", resources=resources
        )
        client.execute()
        return notebook.cells[1:]

    return run_cells


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the notebook lies."""
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def kernel(folder: Path) -> Iterator[Callable[..., list[nbformat.NotebookNode]]]:
    """One kernel, and one engine, for all tests of a file; who starts a group stops it."""
    notebook = nbformat.v4.new_notebook()
    resources = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(
        notebook, timeout=60, allow_errors=True, kernel_name="python3", resources=resources
    )

    def run_cells(*sources: str) -> list[nbformat.NotebookNode]:
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        notebook.cells = cells
        for index, cell in enumerate(cells):
            client.execute_cell(cell, index)
        return cells

    with client.setup_kernel():
        run_cells("%load_ext workshop")
        yield run_cells
