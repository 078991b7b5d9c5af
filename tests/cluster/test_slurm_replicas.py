"""Replicas as one job of a real Slurm: tasks on two nodes, one killed, all with the same weights at the end."""

import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from workshop.launch import RankFailed, Script, jobs
from workshop.launch.fresh.replicas import ReplicasResult
from workshop.launch.jobs.client import SchedulerError
from workshop.launch.processes import ProcessId, wait_gone
from workshop.site.job import Job
from workshop.site.spec import read_site

WHO = """\
import os
from workshop import report
number, attempt = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
assert os.environ["TORCHFT_LIGHTHOUSE"].startswith("http://") and os.environ["NUM_REPLICA_GROUPS"] == "2"
report(number=number, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
print("attempt", attempt)
if number == 1 and (attempt == 0 or give_up):
    raise ValueError("no luck")
"""

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(400)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "replicas"


def test_a_killed_replica_comes_back_to_the_others_and_the_lighthouse_ends_with_the_job(
    slurm, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    number = slurm.ask(
        "sbatch", "--parsable", "--ntasks=2", "--nodes=2", f"--chdir={tmp_path}", "-p", "lab",
        str(EXAMPLE / "replicas.sbatch"), str(EXAMPLE / "outlive.py"), "--kill", "1",
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
    said = {task: re.findall(rf"(?m)^{task}: (.*)$", text) for task in range(2)}
    last = {line for lines in said.values() for line in lines if line.startswith("ended at step")}
    assert len(last) == 1, text[-3000:]
    assert all(any(line in last for line in lines) for lines in said.values()), text[-3000:]
    assert "takes the state of a peer" in said[1]
    assert said[1].count("2 of 2 take part") == 2, "before it was killed, and after"
    assert lighthouse is not None
    assert wait_gone([lighthouse], 20.0) == []  # the job leaves the queue a moment before its last process
    assert [command for _, command in slurm.left() if "torchft" in command or "outlive" in command] == []


def torchft_of(slurm):
    return [
        line for _, line in slurm.left() if "torchft" in line or "lighthouse" in line or "outlive" in line
    ]


def test_a_job_of_replicas_outlives_one_of_them_on_two_nodes(slurm, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    job = Job("outlive", "", nnodes=2, replicas=3, max_restarts=2, time="00:05:00")
    submitted = jobs.submit(Script(EXAMPLE / "outlive.py", ("--kill", "2")), job, read_site(slurm.site))
    result = submitted.follow()
    assert isinstance(result, ReplicasResult)
    assert "2 nodes, 3 replicas of 1 rank on CPU, gloo; everybody on the nodes' network" in result.device
    last = set(re.findall(r"ended at step \d+ with weights \w+", result.text))
    assert len(last) == 1, result.text
    assert [text for text in last if result.text.count(text) == 3], result.text
    assert "replica 2\n" in result.text
    assert "takes the state of a peer" in result.text.partition("replica 2\n")[2]
    assert result[2].notes == ("all ranks were started again; this is attempt 2",)
    assert torchft_of(slurm) == []


def test_replicas_report_and_the_one_that_gives_up_is_named(slurm):
    site = read_site(slurm.site)
    job = Job("who", "", nnodes=2, nproc_per_node=2, replicas=2, max_restarts=1)
    result = jobs.submit(WHO, job, site, variables={"give_up": False}).follow()
    for number in (0, 1):
        for rank in (0, 1):
            assert result[number][rank] == {"number": number, "rank": rank, "world_size": 2}
    assert "replica 0\n[ranks 0-1] attempt 0\nreplica 1\n" in result.text
    with pytest.raises(RankFailed, match=r"replica 1: ranks? .* raised ValueError") as caught:
        jobs.submit(WHO, replace(job, nproc_per_node=1), site, variables={"give_up": True}).follow()
    assert caught.value.result[0][0].number == 0, "the other went on to its end"
    assert torchft_of(slurm) == []


def test_the_job_fails_where_there_is_no_torchft(slurm, tmp_path):
    (tmp_path / "torchft.py").write_text("raise ImportError('no torchft here')")
    path = f"{tmp_path}:{Path(__file__).parents[2]}"
    job = Job("none", "", replicas=2, environment={"PYTHONPATH": path})
    with pytest.raises(SchedulerError, match=r"(?s)before its ranks had started.*lighthouse could not start"):
        jobs.submit("print(1)", job, read_site(slurm.site)).follow()
