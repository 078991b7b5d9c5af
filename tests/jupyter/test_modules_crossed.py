"""How far a parallel cell walks: the modules of the package that it enters in the notebook's own process.

A reader who follows a cell through the code opens these files. Each is an idea of its own, and there are at most
twelve; a thirteenth means that an idea was cut in two, or that a cell does what it need not do.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from workshop.site import current

MOST = 12
TRACER = """
import sys, threading
from pathlib import Path
import workshop

def crossed(cell):
    package, seen = Path(workshop.__file__).parent, set()
    def enter(frame, event, _argument):
        if event == "call":
            seen.add(frame.f_code.co_filename)
    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        outcome = get_ipython().run_cell(cell)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    outcome.raise_error()
    return sorted(str(Path(file).relative_to(package)) for file in seen if Path(file).is_relative_to(package))
"""
ORDINARY = "from workshop import report\nprint('a line')\nreport(loss=0.5)"


def test_a_cell_crosses_at_most_twelve_modules(
    run: Callable[..., list], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if current.EVERYONE.exists():
        pytest.skip(
            f"{current.EVERYONE} describes this machine: what ranks are told then is read from more files"
        )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # nobody's site either
    monkeypatch.delenv("WORKSHOP_SITE", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # and no leases of GPUs
    magics = ("%%torchrun -n 2", "%%ranks -n 2")
    cells = [
        f"{magic}\n{ORDINARY}" for magic in magics
    ]  # the first one starts the ranks, the second is traced
    _, *outputs = run(TRACER, *(line for cell in cells for line in (cell, f"crossed({cell!r})")))
    for magic, traced in zip(magics, outputs[1::2], strict=True):
        printed = "".join(output.text for output in traced.outputs if output.output_type == "stream")
        assert "[ranks 0-1] a line" in printed, traced.outputs
        modules = ast.literal_eval(traced.outputs[-1].data["text/plain"])
        assert "jupyter/magics.py" in modules  # the tracer sees
        assert len(modules) <= MOST, (
            f"a cell {magic} enters {len(modules)} modules, at most {MOST}: {modules}"
        )
