"""A notebook in a real kernel."""

from __future__ import annotations

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
