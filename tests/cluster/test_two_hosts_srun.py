"""`%ranks` on two nodes of a real Slurm: the programs are started by srun, in a job's allocation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tests.cluster.slurm", reason="the Slurm of two nodes is not among these tests")
pytestmark = [pytest.mark.slurm]

NOTEBOOK = """
import json, sys, time
from IPython.core.interactiveshell import InteractiveShell
from workshop import launch
from workshop.facts.launcher_variables import PLACES_OF_THE_JOB
from workshop.jupyter import load
from workshop.jupyter.magics import ParallelMagics

shell = InteractiveShell.instance()
load(shell)
told = {}
shell.run_line_magic("ranks", "start --nnodes 2 -n 2 --interface lo")
ranks = ParallelMagics.ranks_alive
told["sum"] = ranks.run("x = torch.ones(1) * rank; dist.all_reduce(x); print(x.item())").text
told["leaked"] = ranks.run("import os; print([k for k in os.environ if k.startswith(('SLURM_', 'SRUN_')) and k not in places])", variables={"places": PLACES_OF_THE_JOB}).text
told["status"] = ranks.status()
try:
    ranks.run("import os, time\\nif rank == 3:\\n    time.sleep(0.3); os.kill(os.getpid(), 9)\\ndist.barrier()")
except launch.RankFailed as error:
    told["death"] = str(error)
ranks.restart()
told["again"] = ranks.run("print('again')").text
told["starter"] = ranks.remote._processes[0].starter.pid
with open(sys.argv[1], "w") as file:
    json.dump(told, file)
ranks.run("import time; time.sleep(100)") if sys.argv[2] == "stays" else ranks.stop()
"""


def in_a_job(slurm: Any, folder: Path, last: str) -> tuple[str, Path]:
    """Hand in a job of two nodes, whose first runs the notebook; its number, and where its findings will be."""
    (folder / "notebook.py").write_text(NOTEBOOK)
    found = folder / "found.json"
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\nexec {sys.executable} {folder}/notebook.py {found} {last}\n")
    command = ["sbatch", "--parsable", "-N2", "--ntasks-per-node=1", "-o", str(folder / "out"), str(script)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, env=environment, check=True)
    return done.stdout.strip(), found


def wait_for(happened: Any, why: Path, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, why.read_text() if why.exists() else "the job did not start"
        time.sleep(0.1)


def programs(slurm: Any) -> list[str]:
    """Command lines of this Slurm's processes that are a node's program."""
    commands = [command for _, command in slurm.left()]
    return [
        command
        for command in commands
        if "workshop.launch.nodes.program import main" in command and "srun" not in command.split()[0]
    ]


def test_srun_starts_the_other_node_and_a_cancelled_job_leaves_nothing(slurm, tmp_path) -> None:
    number, found = in_a_job(slurm, tmp_path, "stays")
    wait_for(lambda: found.exists() and found.read_text().endswith("}"), tmp_path / "out")
    told = json.loads(found.read_text())
    assert told["sum"] == "[ranks 0-3] 6.0\n"
    assert told["leaked"] == "[ranks 0-3] []\n"
    assert told["again"] == "[ranks 0-3] again\n"
    assert [line.split()[-2].rstrip(",") for line in told["status"].splitlines()[1:]] == ["node1"] * 2 + [
        "node2"
    ] * 2
    assert told["death"].startswith("rank 3 died first")
    assert "on node node2" in told["death"]
    assert programs(slurm), "seen while they are there"
    slurm.ask("scancel", number)
    wait_for(lambda: not programs(slurm), tmp_path / "out", seconds=15)
