"""A fork of the warm Python is as good as a new one: same answer, same errors, nothing stays behind."""

import os
import subprocess
import sys

import pytest

from tests import warm_python
from workshop.rehearse import RehearsalError, rehearse

PROGRAM = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("the end")
"""


@pytest.fixture(scope="module")
def cold():
    return rehearse(PROGRAM, 512)


def test_a_warm_rehearsal_is_a_cold_one(cold, warm_rehearsals):
    played = rehearse(PROGRAM, 512)
    assert played.seconds["import"] < cold.seconds["import"]
    assert played.traffic == cold.traffic
    assert played.memory.step_peaks == cold.memory.step_peaks
    assert (played.flops, played.output) == (cold.flops, cold.output)


def test_errors_and_dead_processes_come_through(warm_rehearsals):
    with pytest.raises(RehearsalError, match="line 2: raise KeyError"):
        rehearse("\nraise KeyError('mine')\n", 2)
    with pytest.raises(RehearsalError, match=r"exit code -6.*\n.*aborted on purpose"):
        rehearse("import os, sys\nprint('aborted on purpose', file=sys.stderr)\nos.abort()\n", 2)


def test_environment_folder_and_output_are_the_callers(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import os, sys\nprint(os.environ['MINE'], 'HOME' in os.environ, os.getcwd(), sys.argv[1:])\n"
        "print('to stderr', file=sys.stderr)\nsys.exit(3)\n"
    )
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "mine", "--flag", "1"]
    environment = {"MINE": "a value", "PATH": os.environ["PATH"]}
    cold = subprocess.run(command, env=environment, capture_output=True, text=True)
    warm = warm_python.run(command, env=environment)
    assert cold.stdout == f"a value False {tmp_path} ['--flag', '1']\n"
    assert (warm.returncode, warm.stdout, warm.stderr) == (3, cold.stdout, cold.stderr)


def test_it_is_ended_in_time_with_what_it_said(tmp_path, monkeypatch):
    (tmp_path / "sleeper.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired) as late:
        warm_python.run([sys.executable, "-m", "sleeper"], timeout=5)
    assert late.value.stdout == b"begun\n"
