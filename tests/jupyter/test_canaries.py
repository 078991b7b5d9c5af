"""Canaries: notebooks with one broken parallel cell each. A notebook tool that calls one green is blind.

nbval judges cell by cell, so it gets all canaries in one notebook, after healthy cells of every kind and each followed
by a healthy cell on the same ranks. nbclient does too, through the hook that it calls where it would stop. nbmake
judges notebooks, so each canary is a notebook of its own, and it gets one of each kind and a healthy one; what the
error says proves which cell was red.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import nbclient
import nbformat
import pytest

from tests import warm_kernels

LOAD = "%load_ext workshop"
HEALTHY_FRESH = "%%torchrun -n 2\nprint('well')"
HEALTHY_STAYING = "%%ranks -n 2\ndist.barrier()\nprint('well')"
ONE_RAISES = "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('no luck')\n"
JOIN = "import torch.distributed as dist\ndist.init_process_group()\n"
HANG = "import time\ntime.sleep(1000)\n"

# What is wrong with the cell, the cell, and what its error must say.
BEFORE_ANYTHING_STARTS = {
    "an unknown flag": (
        "%%{} -n 2 --tiemout 5\nprint(1)",
        "ValueError: %%{}: unrecognized arguments: --tiemout 5",
    ),
    "a number of ranks that is none": ("%%{} -n many\nprint(1)", "'many': a number of ranks, or gpu"),
    "a syntax error": ("%%{}\nprint(1", "CellSyntaxError: cell line 2"),
    "a value that cannot be pickled": (
        "lines = (i for i in range(3))\nget_ipython().run_cell_magic('{}', '-n 2 --pass lines', 'print(1)')",
        "ValueError: --pass lines: a generator cannot be sent",
    ),
}
ON_THE_RANKS = {
    "rank 1 raises": ("%%{} -n 2\n" + ONE_RAISES, "RankFailed: rank 1 raised ValueError first, line 4"),
    "all raise": ("%%{} -n 2\n1 / 0", " raised ZeroDivisionError"),
    "rank 1 raises, rank 0 is in a barrier": (
        "%%{} -n 2\n" + JOIN + ONE_RAISES + "dist.barrier()",
        "rank 0: in barrier, line 7",
    ),
    "a rank dies": ("%%{} -n 2\n" + ONE_RAISES.replace("raise ValueError('no luck')", "os._exit(3)"), "exit code 3"),
    "a timeout": ("%%{} -n 2 --timeout 1\n" + HANG, "RankTimeout: time is up after 1 s"),
}  # fmt: skip
MAGICS = {
    "an unknown line magic": ("%torchrum -n 2 train.py", "UsageError: Line magic function `%torchrum` not found"),
    "an unknown cell magic": ("%%rank -n 2\nprint(1)", "UsageError: Cell magic `%%rank` not found"),
    "a script that is not there": ("%torchrun -n 2 absent.py", "ValueError: there is no script absent.py"),
    "a group of no ranks": ("%ranks start -n 0", "ValueError: "),
    "an unknown action": ("%ranks begin", "ValueError: %ranks: argument action: invalid choice: 'begin'"),
}  # fmt: skip


def canaries() -> dict[str, tuple[str, str]]:
    """Name -> (cell, what its error says), for both kinds of parallel cells."""
    found = dict(MAGICS)
    for name, (cell, says) in {**BEFORE_ANYTHING_STARTS, **ON_THE_RANKS}.items():
        for magic in ("torchrun", "ranks"):
            found[f"{name} (%%{magic})"] = (cell.replace("{}", magic), says.replace("{}", magic))
    return found


CANARIES = canaries()
HEALTHY = [
    LOAD,
    "lr = 0.5",
    "%%torchrun -n 2 --pass lr --into results --timeout 60\nfrom workshop import report\nreport(lr=lr)",
    "assert results[1].lr == 0.5",
    "%torchrun -n 2 train.py --lr 1",
    "%ranks start -n 2",
    "%%ranks\nx = torch.ones(1)\ndist.all_reduce(x)\nprint(x.item())",
    "%%ranks --on 1 --into one\nfrom workshop import report\nreport(x=x)\nx",
    "assert float(one[1].x[0]) == 2.0",
    "%ranks status",
    "%ranks restart",
    "%ranks stop",
]


def write(path: Path, cells: Iterable[str]) -> Path:
    """A notebook with these code cells, not executed."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(notebook, path)
    return path


# Nothing that judges notebooks: a second of a core to import, each time.
WITHOUT = [f"-pno:{plugin}" for plugin in ("cacheprovider", "hypothesispytest", "anyio")]


def verdicts(directory: Path, *options: str) -> list[tuple[str, str, str]]:
    """Run pytest as a user of nbval or nbmake would; (class name, test name, failure or "") of each test."""
    report = directory / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(directory)]
    done = subprocess.run(
        [*command, *WITHOUT, f"--junitxml={report}", *options, str(directory)],
        cwd=directory, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = []
    for case in ElementTree.parse(report).iter("testcase"):
        failure = case.find("failure")
        text = "" if failure is None else (failure.text or "") + failure.get("message", "")
        found.append((case.get("classname", ""), case.get("name", ""), text))
    return found


def one_notebook(folder: Path) -> Path:
    """Healthy cells of every kind, then every canary, and after each a healthy cell that must be green."""
    cells = [*HEALTHY, HEALTHY_FRESH, HEALTHY_STAYING]
    for name, (cell, _) in CANARIES.items():
        died = name == "a rank dies (%%ranks)"
        cells += [cell, "%ranks restart" if died else HEALTHY_STAYING]
    return write(write_script(folder) / "canaries.ipynb", cells)


def write_script(folder: Path) -> Path:
    """The script that a healthy cell runs lies beside the notebook."""
    (folder / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    return folder


FIRST = len(HEALTHY) + 2  # the number of the first canary's cell
CELLS = FIRST + 2 * len(CANARIES)


def assert_red_where_broken(errors: Mapping[int, str]) -> None:
    """``errors``: cell number -> what was said, of the notebook above."""
    for i, (name, (_, says)) in enumerate(CANARIES.items()):
        assert says in errors.get(FIRST + 2 * i, "green"), name
    healthy = [*range(FIRST), *range(FIRST + 1, CELLS, 2)]
    assert {number: errors[number] for number in healthy if number in errors} == {}


def test_nbval_is_red_on_every_canary_and_on_nothing_else(tmp_path):
    one_notebook(tmp_path)
    found = verdicts(tmp_path, "--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=60")
    assert len(found) == CELLS
    errors = {int(name.removeprefix("Cell ")): failure for _, name, failure in found if failure}
    assert_red_where_broken(errors)


def test_nbclient_is_red_on_every_canary_and_on_nothing_else(tmp_path):
    notebook = nbformat.read(one_notebook(tmp_path), as_version=4)
    red = {}

    def note(cell, cell_index, execute_reply):
        red[cell_index] = f"{execute_reply['content']['ename']}: {execute_reply['content']['evalue']}"

    where = {"metadata": {"path": str(tmp_path)}}
    with warm_kernels.warm():
        nbclient.NotebookClient(
            notebook,
            timeout=60,
            kernel_name="python3",
            resources=where,
            allow_errors=True,
            on_cell_error=note,
        ).execute()
    assert_red_where_broken(red)


# nbmake starts a kernel and an engine for each, and what it judges by is nbclient, which has seen them all: so one
# that IPython itself refuses, and one of ours; to IPython all of ours are a magic that raises.
FOR_NBMAKE = ("an unknown line magic", "a rank dies (%%ranks)")


def healthy_before(name: str) -> list[str]:
    """A healthy parallel cell of the canary's own kind; none where nothing gets as far as the engine."""
    if name.split(" (")[0] not in ON_THE_RANKS:
        return []
    return [HEALTHY_STAYING if "%%ranks" in name else HEALTHY_FRESH]


def test_nbmake_is_red_on_every_kind_of_canary_and_on_no_healthy_notebook(tmp_path):
    write(write_script(tmp_path) / "healthy.ipynb", HEALTHY)
    for number, name in enumerate(FOR_NBMAKE):
        write(tmp_path / f"canary_{number}.ipynb", [LOAD, *healthy_before(name), CANARIES[name][0]])
    found = verdicts(tmp_path, "--nbmake", "--nbmake-timeout=60")
    assert len(found) == 1 + len(FOR_NBMAKE)
    verdict_on = {f"{classname} {name}": failure for classname, name, failure in found}

    def told(notebook: str) -> str:
        (text,) = [text for key, text in verdict_on.items() if notebook in key.replace(".ipynb", " ").split()]
        return text

    assert told("healthy") == ""
    for number, name in enumerate(FOR_NBMAKE):
        assert CANARIES[name][1] in told(f"canary_{number}"), name


@pytest.mark.parametrize(
    ("cells", "last", "code"),
    [([LOAD, HEALTHY_FRESH], HEALTHY_STAYING, 0), ([LOAD, HEALTHY_STAYING], "%%ranks\n1 / 0", 1)],
    ids=["healthy", "broken"],
)
def test_jupyter_execute_is_green_on_health_and_red_on_failure(tmp_path, cells, last, code):
    notebook = write(tmp_path / "notebook.ipynb", [*cells, last])
    done = subprocess.run(
        [sys.executable, "-m", "jupyter", "execute", str(notebook)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert ("ZeroDivisionError" in done.stderr) == bool(code)
