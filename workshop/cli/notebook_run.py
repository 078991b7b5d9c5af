"""Run a notebook without a browser, with the kernel of this very Python.

nbclient does the work. Two things are settled here. First, the kernel: a user may have a kernel called
``python3`` of their own that points elsewhere, so the kernel is the one that ipykernel describes for
``sys.executable``, and the user's kernels are neither read nor changed. Second, the reader: each cell is
handed over as soon as it is done.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

CELL_SECONDS = 120
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def own_kernel_manager(sockets: Path) -> AsyncKernelManager:
    """A manager for the kernel of ``sys.executable``, whatever kernels are installed for the user.

    It speaks through files in the folder ``sockets`` and opens no port.
    """
    specs = KernelSpecManager(kernel_dirs=[], ensure_native_kernel=True)
    ends = {"transport": "ipc", "ip": str(sockets / "kernel")}
    return AsyncKernelManager(kernel_name="python3", kernel_spec_manager=specs, **ends)


def run_notebook(
    notebook: NotebookNode,
    folder: Path,
    on_cell: Callable[[NotebookNode], None] | None = None,
    seconds: float = CELL_SECONDS,
) -> None:
    """Execute ``notebook`` in place, in ``folder``; ``on_cell`` gets each cell, text cells too, in order.

    Args:
        notebook: read with nbformat; its outputs are replaced.
        folder: the kernel's working directory.
        on_cell: called with each cell when it is over.
        seconds: time limit of one cell.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell raised and carries no ``raises-exception`` tag.
        nbclient.exceptions.CellTimeoutError: A cell took longer than ``seconds``.
    """
    with tempfile.TemporaryDirectory(prefix="workshop-") as sockets:
        manager = own_kernel_manager(Path(sockets))
        resources = {"metadata": {"path": str(folder)}}
        client = NotebookClient(notebook, km=manager, timeout=seconds, resources=resources)
        _run_cells(client, on_cell)


def _run_cells(client: NotebookClient, on_cell: Callable[[NotebookNode], None] | None) -> None:
    # Said aloud, because nbclient leaves a kernel running whose manager it was given.
    with client.setup_kernel(cleanup_kc=True):
        for number, cell in enumerate(client.nb.cells):
            try:
                client.execute_cell(cell, number)
            finally:
                if on_cell is not None:
                    on_cell(cell)


def plain_text(outputs: Iterable[NotebookNode]) -> str:
    """What a terminal can show of a cell's outputs; a picture is named, errors are left to the exception."""
    parts = []
    for output in outputs:
        if output.output_type == "stream":
            parts.append(output.text)
        elif output.output_type == "error":
            parts.append(f"{output.ename}: {output.evalue}\n")
        elif "text/plain" in output.get("data", {}):
            is_picture = any(kind.startswith("image/") for kind in output.data)
            text = "[a picture: see it in the lab]" if is_picture else output.data["text/plain"]
            parts.append(text + "\n")
    return _COLOUR.sub("", "".join(part if part.endswith("\n") else part + "\n" for part in parts if part))
