"""Replicas as one job of a real Slurm: tasks on two nodes, one killed, all with the same weights at the end."""

import re
import sys
import time
from pathlib import Path

import pytest

from workshop.launch.processes import ProcessId

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(400)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "replicas"


def test_a_killed_replica_comes_back_to_the_others_and_the_lighthouse_ends_with_the_job(
    slurm, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    number = slurm.ask(
        "sbatch", "--parsable", "--ntasks=3", "--nodes=2", f"--chdir={tmp_path}", "-p", "lab",
        str(EXAMPLE / "replicas.sbatch"), str(EXAMPLE / "outlive.py"), "--kill", "2",
    ).strip()  # fmt: skip
    output, lighthouse = tmp_path / f"replicas-{number}.out", None
    deadline = time.monotonic() + 300
    while slurm.queue() and time.monotonic() < deadline:
        if (
            lighthouse is None
            and output.exists()
            and (told := re.search(r"lighthouse (\d+)", output.read_text()))
        ):
            lighthouse = ProcessId.of(int(told[1]))
        time.sleep(0.1)
    text = output.read_text()
    said = {task: re.findall(rf"(?m)^{task}: (.*)$", text) for task in range(3)}
    last = {line for lines in said.values() for line in lines if line.startswith("ended at step")}
    assert len(last) == 1, text[-3000:]
    assert all(any(line in last for line in lines) for lines in said.values()), text[-3000:]
    assert "takes the state of a peer" in said[2]
    assert said[2].count("3 of 3 take part") == 2, "before it was killed, and after"
    assert lighthouse is not None
    assert not lighthouse.alive()
    assert [command for _, command in slurm.left() if "torchft" in command or "outlive" in command] == []
