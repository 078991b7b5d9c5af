"""``%%sbatch`` in a real notebook kernel and ``workshop sbatch`` on a terminal, both on the Slurm of two nodes."""

import re
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

from tests.cluster.slurm import free_range
from workshop.cli import main
from workshop.launch import jobs

pytestmark = pytest.mark.slurm

CELL = """\
%%sbatch -n 2 --pass gift --into results --save saved.py
import os
from workshop import report

print("gift", gift)
report(rank=int(os.environ["RANK"]))
"""


@pytest.fixture
def run(slurm, tmp_path):
    def run_cells(*sources):
        cells = [nbformat.v4.new_code_cell(source) for source in ("%load_ext workshop", *sources)]
        notebook = nbformat.v4.new_notebook(cells=cells)
        resources = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(
            notebook, timeout=60, allow_errors=True, kernel_name="python3", resources=resources
        ).execute()
        return notebook.cells[1:]

    return run_cells


def printed(cell):
    return "".join(o.text for o in cell.outputs if o.output_type == "stream")


def shown(cell):
    return [o.data["text/plain"] for o in cell.outputs if o.output_type in ("display_data", "execute_result")]


def error(cell):
    return "".join("\n".join(o.traceback) for o in cell.outputs if o.output_type == "error")


def test_a_cell_becomes_a_job_and_its_results_come_back(run, tmp_path):
    cells = run(
        "gift = 7",
        CELL,
        "results[1].rank",
        "%%sbatch -N 2 --dry-run\nprint()",
        "%%sbatch -N 2 --test-only\nprint()",
        "%%sbatch -n 1 --detach --into later\nprint('left alone')",
        "%sbatch --follow {later.number}",
        "%%sbatch --nods 2\nprint()",
        "import sys; 'torch' in sys.modules",
    )
    assert re.fullmatch(r"job \d+: 1 node of 2 ranks on CPU, gloo", shown(cells[1])[0])
    # Before it may stand which secrets of this shell were left out of the job.
    assert printed(cells[1]).splitlines()[-1] == "[ranks 0-1] gift 7"
    assert "gift = 7" in (tmp_path / "saved.py").read_text()
    assert shown(cells[2]) == ["1"]
    assert "#SBATCH --nodes=2\n" in printed(cells[3])
    assert "to start at" in printed(cells[4])
    assert "outlives this notebook: %sbatch --follow" in printed(cells[5])
    assert printed(cells[6]).splitlines()[-1] == "[rank 0] left alone"
    assert "Did you mean --nodes?" in error(cells[7])
    assert shown(cells[8]) == ["False"]


def test_on_a_terminal(slurm, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("cell.txt").write_text("%%torchrun -n 1\nprint('from a cell')\n")
    assert main(["sbatch", "cell.txt", "--detach"]) == 0
    said = capsys.readouterr().out
    number = jobs.known()[-1].number
    assert f"later: workshop jobs {number}" in said
    assert main(["jobs", number]) == 0
    assert capsys.readouterr().out.endswith("[rank 0] from a cell\n")
    assert main(["jobs"]) == 0
    assert re.search(rf"{number} .* cell +COMPLETED", capsys.readouterr().out)
    assert main(["jobs", number, "--remove"]) == 0
    assert number not in [job.number for job in jobs.known()]


def test_lesson_61_hands_its_job_in_where_there_is_a_slurm(slurm):
    folder = Path(__file__).parents[2] / "notebooks" / "day6_cluster"
    notebook = nbformat.read(folder / "61_slurm_and_apptainer.ipynb", 4)
    (job,) = [number for number, cell in enumerate(notebook.cells) if "def handed_in" in cell.source]
    # Those above, of which it needs some, and the comparison below; what follows asks nothing of a Slurm.
    notebook.cells = notebook.cells[: job + 3]
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=80, kernel_name="python3", resources=resources).execute()
    cell, _, compared = notebook.cells[job:]
    assert "two on each of two nodes" in notebook.cells[job + 1].source
    assert "rank 3: node 1, local rank 1" in printed(compared)
    assert "RECORDED" not in printed(cell)
    assert "to start at" in printed(cell)
    assert "RUNNING on node[1-2]" in printed(cell)
    assert "[ranks 0-3] the sum of all ranks, counted from 1, is 10" in printed(cell)


RANK = """\
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
node, local_rank = os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"]
os.write(1, f"rank {dist.get_rank()}: node {node}, local rank {local_rank}, {total.item()}\\n".encode())
dist.destroy_process_group()
"""


def test_the_way_of_lesson_61_without_torchrun_makes_one_group_of_srun_s_tasks(slurm, tmp_path):
    (lesson,) = (Path(__file__).parents[2] / "notebooks" / "source").glob("day*/61_*.py")
    lines = re.search(r'OTHER_WAY = """(.*?)"""', lesson.read_text(), re.DOTALL)[1]
    setting = f"PATH={Path(sys.executable).parent}:$PATH GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1"
    (tmp_path / "train.py").write_text(RANK)
    (tmp_path / "job.sh").write_text(
        f"#!/bin/bash\nexport {setting}\nhead=127.0.0.1 port={free_range(1)}\n"
        + lines.replace("--ntasks-per-node=4", "--ntasks-per-node=2")
    )
    command = ["sbatch", "--wait", "-N2", "--ntasks-per-node=2", "-o", "out", "job.sh"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=90)
    assert sorted((tmp_path / "out").read_text().splitlines()) == [
        f"rank {rank}: node {rank // 2}, local rank {rank % 2}, 10" for rank in range(4)
    ]
