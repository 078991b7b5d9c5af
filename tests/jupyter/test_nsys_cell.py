"""`%%torchrun --nsys` in a kernel: with a stand-in for nsys on the PATH, and without."""

from __future__ import annotations

import sys
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


@pytest.fixture
def here(tmp_path: Path) -> str:
    """A cell that puts the stand-in on the PATH."""
    tool = tmp_path / "bin" / "nsys"
    tool.parent.mkdir()
    tool.write_text(NSYS)
    tool.chmod(0o755)
    return f"import os; os.environ['PATH'] = {str(tool.parent)!r} + os.pathsep + os.environ['PATH']"


CELL = "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], lr)"


def test_with_nsys_the_line_runs(run, here, tmp_path):
    cells = run("lr = 0.5", here, f"%%torchrun -n 2 --nsys prof --nsys-range steps --pass lr\n{CELL}")
    text = printed(cells[2])
    assert error(cells[2]) == ""
    assert text.startswith("nsys profile --trace=cuda,nvtx,osrt")
    assert "python3 -m torch.distributed.run --standalone --nproc-per-node=2 prof.py" in text
    assert "--nvtx-capture=steps" in text
    assert "rank 0 of 2 0.5" in text
    assert "rank 1 of 2 0.5" in text
    assert (tmp_path / "prof.nsys-rep").read_text() == "a report"
    assert "lr = 0.5" in (tmp_path / "prof.py").read_text()


def test_a_failing_program_is_a_red_cell(run, here):
    cells = run(here, "%%torchrun -n 2 --nsys prof\nraise RuntimeError('broken on purpose')")
    assert "RankFailed" in error(cells[1])
    assert "broken on purpose" in printed(cells[1])


def test_without_nsys_the_cell_runs_as_ever(run, tmp_path):
    cells = run(
        "import os; os.environ['PATH'] = '/nowhere'; lr = 1",
        f"%%torchrun -n 2 --nsys prof --pass lr\n{CELL}",
        "%%torchrun -n 2 --nsys prof --into x\nprint()",
        "%%torchrun -n 2 --nsys-range steps\nprint()",
    )
    text = printed(cells[1])
    assert text.startswith("nsys is not on this machine's PATH: the cell runs without it.")
    assert "[rank 1] rank 1 of 2 1" in text
    assert (tmp_path / "prof.py").exists()
    assert "--into does not go with --nsys" in error(cells[2])
    assert "--nsys-range RANGE needs --nsys NAME" in error(cells[3])


def printed(cell) -> str:
    return "".join(o.text for o in cell.outputs if o.output_type == "stream")


def error(cell) -> str:
    return "".join("\n".join(o.traceback) for o in cell.outputs if o.output_type == "error")
