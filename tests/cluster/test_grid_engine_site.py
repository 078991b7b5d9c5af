"""A real Grid Engine: JupyterLab in a job, and the dialect of TSUBAME4 (``-g GROUP``, ``-l node_f=2``)."""

import os
import re
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from workshop.launch import jobs
from workshop.site.job import Job
from workshop.site.spec import read_site

pytestmark = pytest.mark.cluster


def test_jupyterlab_in_a_job_of_grid_engine(grid_engine, tmp_path):
    command = [sys.executable, "-m", "workshop", "lab", "--in-job", "--dir", str(grid_engine.jobs / "lab"),
               "--tunnel", "ada@login"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    job, log = re.search(r"lab: job (\d+), log (\S+)", done.stdout).groups()
    deadline = time.monotonic() + 90
    while "?token=" not in (text := Path(log).read_text() if Path(log).exists() else ""):
        assert time.monotonic() < deadline, text
        time.sleep(0.2)
    assert re.search(r"ssh -N -L (\d+):127\.0\.0\.1:\1 -J ada@login ge-node[12]\n", text)
    assert stat.S_IMODE(Path(log).stat().st_mode) == 0o600
    grid_engine.ask("qdel", job)


def test_the_dialect_of_tsubame(grid_engine, tmp_path, monkeypatch):
    """Its qsub takes -g on the command line, and its scheduler makes two hosts of -l node_f=2."""
    qsub = tmp_path / "qsub"
    lines = [
        "#!/bin/bash",
        '[ "$2" = -g ] || { echo "Unable to run job: a trial of ten minutes" >&2; exit 1; }',
        'script=${@: -1}; sed "s/^#[$] -l node_f=/#$ -pe node /" "$script" > "$script.changed"',
        f'exec {grid_engine.clients}/qsub "$1" -A "$3" "$script.changed"',
    ]
    qsub.write_text("\n".join(lines) + "\n")
    qsub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    site = replace(
        read_site(grid_engine.site),
        directives=("-l node_f={nnodes}",),
        account="tga-course",
        account_flag="-g",
    )
    job = jobs.submit("print('two nodes')", Job("dialect", "", nnodes=2, nproc_per_node=1), site)
    told = grid_engine.ask("qstat", "-j", job.number)
    assert re.search(r"account: +tga-course\n", told)
    assert re.search(r"parallel environment: +node range: 2\n", told)
    assert job.follow().text == "[ranks 0-1] two nodes\n"
