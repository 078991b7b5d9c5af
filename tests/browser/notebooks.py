"""Notebooks of few cells with the magics and widgets of the lessons, laid into the lab's folder."""

from __future__ import annotations

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

LOAD = "%load_ext workshop"

# Two ranks that print, and go on when a test lets them: it lays a file beside the notebook.
GROWING = """%%ranks -n 2
from pathlib import Path
import time
print("both are here")
for step in range(2):
    print(f"rank {rank} in step {step}")
    while not Path(f"go{rank}").exists(): time.sleep(0.02)
print("both have come")
"""
WAITING = """%%ranks
while not Path("later").exists(): time.sleep(0.02)
print("waited for the other notebook")
"""
HANGING = """%%ranks
kept = rank + 40
if rank == 1:
    dist.recv(torch.zeros(1), src=0)
print("left the branch")
"""
KEPT = """%%ranks
print("kept", kept)
"""
FAILING = """%%ranks
answer = 41
if rank == 1:
    raise ValueError("rank 1 has had enough")
dist.barrier()
"""
PROCESSES = """%%ranks
import os
print("process", os.getpid())
"""
SECOND = """%%torchrun -n 2
import os
print("the second notebook, rank", os.environ["RANK"])
"""

ALL = {
    "ranks.ipynb": [LOAD, GROWING, WAITING, HANGING, KEPT, FAILING, PROCESSES],
    "second.ipynb": [LOAD, SECOND],
    "sliders.ipynb": [
        "from workshop.jupyter.widgets import memory_explorer, number_explorer, pipeline_explorer",
        "memory_explorer()",
        "pipeline_explorer()",
        "number_explorer(0.3952)",
        "from workshop import show\nshow.parallel_cell(ranks=4)",
    ],
}


def notebook(cells: list[str]) -> nbformat.NotebookNode:
    """A notebook as the lab lays them: for this kernel, without outputs."""
    made = new_notebook(cells=[new_markdown_cell("# A try"), *map(new_code_cell, cells)])
    made.metadata.kernelspec = {
        "name": "python3",
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
    }
    return made
