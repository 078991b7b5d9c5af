"""The cell as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workshop.launch.request import CellSyntaxError, cell_source, check_syntax
from workshop.launch.script import save


def test_the_magic_line_is_line_one() -> None:
    source = cell_source("%%torchrun -n 2", "a\nb")
    assert source.splitlines() == ["# %%torchrun -n 2", "a", "b"]


def test_a_syntax_error_has_line_and_text() -> None:
    with pytest.raises(CellSyntaxError, match=r"cell line 3: .*\n    print\(2"):
        check_syntax("# magic\nprint(1)\nprint(2\n")


def test_a_magic_inside_a_cell_is_explained() -> None:
    with pytest.raises(CellSyntaxError, match="%time is IPython's; a %%sbatch cell is plain Python"):
        check_syntax("# %%sbatch\n%time 1", magic="%%sbatch")
    with pytest.raises(CellSyntaxError, match=r"in a %%ranks cell await works.\n    await later\(\)"):
        check_syntax("# %%torchrun\nawait later()")
    with pytest.raises(CellSyntaxError, match="%time is IPython's; a %%torchrun cell is plain Python"):
        check_syntax("%time x = 1\n")


def test_top_level_await_is_allowed_only_where_asked() -> None:
    check_syntax("await x()\n", top_level_await=True)
    with pytest.raises(CellSyntaxError):
        check_syntax("await x()\n")


def test_saved_cell_runs_with_its_passed_values_and_keeps_line_numbers(tmp_path: Path) -> None:
    values = {"lr": 0.5, "names": ["a"], "double": lambda x: 2 * x}
    body = "print(lr, names, double(4))\nimport sys\nprint(sys._getframe().f_lineno)\n"
    path = save(tmp_path / "my cell.py", "%%torchrun -n 1 --pass lr,names,double", body, values)
    text = path.read_text()
    assert text.startswith("lr = 0.5; names = ['a']; ")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0.5 ['a'] 8\n4\n"


def test_a_saved_cell_takes_its_ranks_own_gpu_as_the_magic_does(tmp_path: Path) -> None:
    """Plain torchrun sets no device: all ranks would meet on the first, which NCCL refuses."""
    path = save(tmp_path / "ddp.py", "%%torchrun -n 2", "import torch\nprint(torch.cuda.chosen)\n", {})
    stub = tmp_path / "torch.py"
    stub.write_text(
        "class cuda:\n    chosen = None\n    is_available = staticmethod(lambda: True)\n"
        "    device_count = staticmethod(lambda: 2)\n"
        "    set_device = staticmethod(lambda number: setattr(cuda, 'chosen', number))\n"
    )
    for local_rank in ("0", "1"):
        environment = {**os.environ, "LOCAL_RANK": local_rank}
        told = subprocess.run(
            [sys.executable, path], env=environment, capture_output=True, text=True, timeout=60
        )
        assert told.stdout == f"{local_rank}\n", told.stderr
    assert "set_device" not in save(tmp_path / "plain.py", "%%torchrun -n 2", "print(1)\n", {}).read_text()


def test_what_is_put_before_a_saved_cell_comes_after_its_future_imports(tmp_path: Path) -> None:
    body = (
        "from __future__ import annotations  # first of all\nimport sys\nprint(a, sys._getframe().f_lineno)\n"
    )
    path = save(tmp_path / "future.py", "%%torchrun -n 2", body, {"a": 1})
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1 4\n"


def test_save_wants_a_python_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs the ending \.py, for example .*ddp\.py"):
        save(tmp_path / "ddp.txt", "%%torchrun", "pass", {})
