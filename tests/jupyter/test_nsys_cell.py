"""`%%torchrun --nsys` in a kernel: with a stand-in for nsys on the PATH, and without."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

NSYS = f"""#!{sys.executable}
import os, subprocess, sys
words = sys.argv[1:]
assert words.pop(0) == "profile"
options = [words.pop(0) for _ in list(words) if words[0].startswith("--")]
print("nsys", *options, flush=True)
output = next(o for o in options if o.startswith("--output=")).split("=")[1]
code = subprocess.run(words).returncode
open(output + ".nsys-rep", "w").write("a report")
sys.exit(code)
"""


# One write: torchrun's ranks share a pipe, and what `print` writes piece by piece is mixed with another's.
CELL = "import os\nprint(f\"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} {lr}\\n\", end='')"


@pytest.fixture(scope="module")
def cells(kernel: Callable[..., list], folder: Path) -> list:
    """First without nsys, then with the stand-in on the PATH."""
    tool = folder / "bin" / "nsys"
    tool.parent.mkdir()
    tool.write_text(NSYS)
    tool.chmod(0o755)
    return kernel(
        "import os; usual = os.environ['PATH']; os.environ['PATH'] = '/nowhere'; lr = 0.5",
        f"%%torchrun -n 2 --nsys plain --pass lr\n{CELL}",
        "%%torchrun -n 2 --nsys prof --into x\nprint()",
        "%%torchrun -n 2 --nsys-range steps\nprint()",
        f"os.environ['PATH'] = {str(tool.parent)!r} + os.pathsep + usual",
        f"%%torchrun -n 2 --nsys prof --nsys-range steps --pass lr\n{CELL}",
        "%%torchrun -n 2 --nsys broken\nraise RuntimeError('broken on purpose')",
    )


def test_without_nsys_the_cell_runs_as_ever(cells, folder):
    text = printed(cells[1])
    assert text.startswith("nsys is not on this machine's PATH: the cell runs without it.")
    assert "[rank 1] rank 1 of 2 0.5" in text
    assert (folder / "plain.py").exists()
    assert "--into does not go with --nsys" in error(cells[2])
    assert "--nsys-range RANGE needs --nsys NAME" in error(cells[3])


def test_with_nsys_the_line_runs(cells, folder):
    text = printed(cells[5])
    assert error(cells[5]) == ""
    assert text.startswith("nsys profile --trace=cuda,nvtx,osrt")
    assert "python3 -m torch.distributed.run --standalone --nproc-per-node=2 prof.py" in text
    assert "--nvtx-capture=steps" in text
    assert "rank 0 of 2 0.5" in text
    assert "rank 1 of 2 0.5" in text
    assert (folder / "prof.nsys-rep").read_text() == "a report"
    assert "lr = 0.5" in (folder / "prof.py").read_text()


def test_a_failing_program_is_a_red_cell(cells):
    assert "RankFailed" in error(cells[6])
    assert "broken on purpose" in printed(cells[6])


def printed(cell) -> str:
    return "".join(o.text for o in cell.outputs if o.output_type == "stream")


def error(cell) -> str:
    return "".join("\n".join(o.traceback) for o in cell.outputs if o.output_type == "error")
