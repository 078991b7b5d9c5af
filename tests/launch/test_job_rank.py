"""A job's ranks on two nodes after a restart: one number for the attempt, and every rank's results."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.ports import free_port
from workshop.launch.child.job_rank import claim_attempt
from workshop.launch.jobs import directory as job_directory
from workshop.launch.jobs import end as job_end
from workshop.launch.jobs.client import State
from workshop.launch.jobs.record import Task
from workshop.site.current import scrubbed
from workshop.site.job import Job
from workshop.site.spec import SiteSpec

# As with NCCL: the rank of the other node does not notice that its peer has gone, it only waits.
WAITS = """\
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from workshop import report
from workshop.train.group import join_group

rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
print("attempt", attempt)
ready = Path(os.environ["WORKSHOP_JOB_FILES"], "ready")
if attempt == "0" and rank == 1:
    while not ready.exists():
        time.sleep(0.01)
    os._exit(3)
if attempt == "0":
    ready.touch()
    time.sleep(120)
join_group()
total = torch.tensor([rank + 1])
dist.all_reduce(total)
report(total=total.item(), attempt=attempt)
dist.destroy_process_group()
"""


def test_after_a_restart_the_results_of_all_nodes_are_there_whatever_each_counts(tmp_path):
    site = SiteSpec(scheduler="slurm", jobs=str(tmp_path))
    job = Job("again", "", nnodes=2, nproc_per_node=1, max_restarts=2)
    directory, record = job_directory.prepare(WAITS, site, job)
    agent = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
        *("--max-restarts=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"),
        *("--rdzv-id=7", "--local-addr=127.0.0.1"),
        *("--module", job_directory.RANK_MODULE, str(directory)),
    ]
    environment = {
        **scrubbed(os.environ),
        "OMP_NUM_THREADS": "1",
        "WORKSHOP_JOB_TASK": "0",
        "WORKSHOP_JOB_START": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    nodes = [
        subprocess.Popen(agent, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    try:
        assert [node.wait(150) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.kill()
            node.wait(10)
    task = Task(directory, replace(record, job="7"), 0)
    result = job_end.conclude(task.record, {0: task}, {0: State("7", None, "COMPLETED")}, "", 1.0)
    assert [(result[rank].total, result[rank].attempt) for rank in (0, 1)] == [(3, "1"), (3, "1")]
    assert result.notes == ("all ranks were started again; this is attempt 2",)
    logs = {rank: (task.rank_dir(rank) / "log").read_text() for rank in (0, 1)}
    assert logs == {0: "attempt 1\n", 1: "attempt 1\n"}, "nothing of the attempt before is among it"


@pytest.mark.parametrize("first_of_each", [(0, 1), (1, 0)])
def test_ranks_that_met_at_one_place_have_one_number(tmp_path, first_of_each):
    numbers = []
    for attempt, first in enumerate(first_of_each):
        for rank in (first, 1 - first):
            numbers.append(claim_attempt(tmp_path, f"node1:{4000 + attempt}", rank))
            (tmp_path / f"attempt_{numbers[-1]}" / f"rank_{rank}").mkdir(parents=True)
    assert numbers == [0, 0, 1, 1]
    assert sorted(path.name for path in tmp_path.glob("[r.]*")) == ["round_0", "round_1"]


def test_a_rank_that_never_began_in_an_attempt_is_counted_right_in_the_next(tmp_path):
    assert claim_attempt(tmp_path, "node1:4000", 0) == 0
    assert claim_attempt(tmp_path, "node1:4001", 1) == 1
    assert claim_attempt(tmp_path, "node1:4001", 0) == 1


def test_an_address_that_comes_again_is_another_attempt(tmp_path):
    assert claim_attempt(tmp_path, "node1:4000", 0) == 0
    (tmp_path / "attempt_0" / "rank_0").mkdir(parents=True)
    assert claim_attempt(tmp_path, "node1:4000", 0) == 1
