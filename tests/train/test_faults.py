"""A rank is killed in the middle of a step; the run ends with the losses of the unbroken one, to the last bit."""

import os
import re
import subprocess
import sys

import pytest

from tests.train.test_checkpoint import EXAMPLE, train, unbroken
from workshop import launch


@pytest.mark.parametrize("zero", [0, 3])
def test_under_our_engine(tmp_path, zero):
    found = train(2, "--zero", zero, "--save-every", 2, "--die-at", 5, folder=tmp_path, restarts=1)
    (note,) = found.notes
    assert note.startswith("attempt 1 failed (rank 1 died first")
    assert found[0].first_step == 4  # step 4 had been taken and was lost
    assert found[0].losses == unbroken(2, zero)[4:]


def test_without_a_restart_it_fails_and_what_was_saved_stays(tmp_path):
    with pytest.raises(launch.RankFailed, match="rank 1 died first"):
        train(2, "--save-every", 2, "--die-at", 5, folder=tmp_path)
    assert (tmp_path / "latest").read_text() == "step-00000004\n"


@pytest.mark.second_try(reason="gloo's threads now and then abort a process that is leaving (torch 2.13)")
def test_under_torchrun_itself(tmp_path):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1",
        str(EXAMPLE), "--model", "tiny", "--zero", "3", "--save-every", "2", "--die-at", "5", "--folder", str(tmp_path),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    said = re.findall(r"step (\d+) loss (\d\.\d{6})", done.stdout)  # two ranks write to one pipe
    wanted = {(str(4 + i), f"{loss:.6f}") for i, loss in enumerate(unbroken(2, 3)[4:])}
    assert set(said) == wanted
    assert len(said) == 2 * len(wanted)
