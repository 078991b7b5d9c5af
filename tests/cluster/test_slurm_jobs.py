"""Jobs on a real Slurm of two nodes: handed in, followed, cancelled, queued again, swept, left and found."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.cluster.pausing import pausing, preempt
from tests.cluster.without_torch import python_without_torch
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.launch import RankFailed, RankInterrupted, RankTimeout, jobs
from workshop.launch.jobs import slurm as client
from workshop.launch.jobs.client import SchedulerError
from workshop.launch.processes import ProcessId, wait_gone
from workshop.site.job import Job
from workshop.site.spec import read_site
from workshop.train.launched import as_program, train, trained

pytestmark = pytest.mark.slurm

SLEEPS = "import time\nprint('at work', flush=True)\ntime.sleep(60)"
SETTINGS = {"num_steps": 6, "save_every": 2, "log_every": 1}


def small(**layout) -> Run:
    layout = Layout(precision="fp32", **layout)
    return Run("gpt-1m", "this-machine", layout, seq_len=32, global_batch=4)


@pytest.fixture
def site(slurm):
    return read_site(slurm.site)


@pytest.fixture
def quick(slurm, site):
    """The same site where ranks start without torch: for what is the scheduler's."""
    return replace(site, python=python_without_torch(slurm.base))


@pytest.fixture
def busy(slurm, tmp_path):
    """Both nodes are taken by somebody else's job."""
    script = tmp_path / "busy.sh"
    script.write_text("#!/bin/bash\nsleep 60\n")
    number = slurm.ask("sbatch", "--parsable", "-N2", "--exclusive", "-o", "/dev/null", str(script)).strip()
    until(lambda: "RUNNING" in slurm.ask("squeue", "-h", "-j", number, "-o", "%T"))
    return number


def until(happened, seconds=90.0):
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


SHAPES = {
    "plain": Job("plain", "", nproc_per_node=2),
    "two nodes": Job("two", "", nnodes=2, nproc_per_node=2, time="00:01:00"),
    "requeue": Job("again", "", requeue=True, signal="USR1@30", max_restarts=2),
    "array": Job("many", "", array="0-3%2"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_sbatch_accepts_the_script(slurm, site, shape):
    assert "to start at" in client.check_script(jobs.try_out(SHAPES[shape], site))


def test_sbatch_refuses_a_script_that_can_never_run(slurm, site):
    with pytest.raises(SchedulerError, match="would refuse it: .*node"):
        client.check_script(jobs.try_out(Job("big", "", nnodes=3), site))


ALL_REDUCE = """\
import os
import torch
import torch.distributed as dist
from workshop import report

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + gift])
dist.all_reduce(total)
print("sum", total.item())
lies = [name for name in os.environ if name.startswith(("SLURM_PROCID", "SLURM_NTASKS", "PMI", "SLURM_STEP"))]
report(total=total, lies=lies, group=int(os.environ["GROUP_RANK"]), job=os.environ["SLURM_JOB_ID"])
dist.destroy_process_group()
"""


def test_two_nodes_of_two_ranks_sum_up_and_report(slurm, site):
    said = []
    job = jobs.submit(ALL_REDUCE, Job("sum", "", nnodes=2, nproc_per_node=2), site, variables={"gift": 10})
    result = job.follow(lambda *shown: said.append(shown))
    assert [result[rank].total.tolist() for rank in range(4)] == [[46]] * 4
    assert [result[rank].group for rank in range(4)] in ([0, 0, 1, 1], [1, 1, 0, 0])
    assert [result[rank].lies for rank in range(4)] == [[]] * 4
    assert {result[rank].job for rank in range(4)} == {job.number}
    assert result.text == "[ranks 0-3] sum 46\n"
    assert result.device == f"job {job.number}: 2 nodes of 2 ranks on CPU, gloo"
    assert any("RUNNING on node[1-2]" in first for first, _ in said)
    assert any("sum 46" in text for _, text in said), "output is seen while the job is there"
    assert job.directory.stat().st_mode & 0o777 == 0o700
    assert job.states()[0].word == "COMPLETED"


def test_a_rank_that_fails_on_the_other_node_is_named_with_its_line(slurm, site):
    body = """\
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 2:
    print("about to fail")
    {}["no such key"]
dist.barrier()
"""
    with pytest.raises(RankFailed) as caught:
        jobs.submit(body, Job("fails", "", nnodes=2, nproc_per_node=2), site).follow()
    failure = caught.value.failures[0]
    assert (failure.rank, failure.error_type, failure.line) == (2, "KeyError", 7)
    assert str(caught.value).startswith("rank 2 raised KeyError first, line 7")
    assert "in barrier, line 8; ended" in str(caught.value)
    assert caught.value.result.text == "[rank 2] about to fail\n"


def test_a_rank_that_is_killed_is_named(slurm, site):
    body = "import os, signal, time\nif os.environ['RANK'] == '1':\n    os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)"
    with pytest.raises(RankFailed, match=r"rank 1 died first") as caught:
        jobs.submit(body, Job("killed", "", nproc_per_node=2), site).follow()
    assert "SIGKILL" in str(caught.value)


def test_a_script_that_fails_before_its_ranks_shows_its_own_words(slurm, site):
    site = replace(site, python="/no/such/python")
    with pytest.raises(
        SchedulerError, match=r"(?s)ended as FAILED before its ranks had started.*no/such/python"
    ):
        jobs.submit("print()", Job("lost", ""), site).follow()


def test_why_it_waits_is_said_and_the_stop_button_takes_it_out_of_the_queue(slurm, site, busy):
    said = []

    def stop_when_told(first, text):
        said.append(first)
        if "Resources" in first:
            raise KeyboardInterrupt

    job = jobs.submit("print()", Job("waits", "", nnodes=2), site)
    watchdog = job._watchdog
    with pytest.raises(RankInterrupted, match=f"job {job.number} was cancelled and is gone"):
        job.follow(stop_when_told)
    assert "PENDING (Resources: the nodes it needs are taken)" in said[-1]
    assert slurm.queue() == [busy]
    assert watchdog.poll() == 0


def test_one_that_can_never_start_says_so(slurm, site):
    job = jobs.submit("print()", Job("long", "", time="02:00:00"), site)
    until(lambda: "PartitionTimeLimit" in job.sentence(job.states()))
    assert "will never start: --time" in job.sentence(job.states())
    job.cancel()
    assert job.states()[0].word == "CANCELLED"


def test_the_stop_button_ends_ranks_that_work_and_their_place_is_known(slurm, quick):
    def stop_when_at_work(first, text):
        if "at work" in text:
            raise KeyboardInterrupt

    job = jobs.submit(SLEEPS, Job("works", "", nproc_per_node=1), quick)
    with pytest.raises(RankInterrupted) as caught:
        job.follow(stop_when_at_work)
    assert caught.value.result.text == "[rank 0] at work\n"
    assert slurm.queue() == []
    process = ProcessId(*json.loads((job.tasks[0].rank_dir(0) / "process.json").read_text()))
    assert wait_gone([process], 5.0) == []
    # Slurm's smallest limit is a minute; its word for it is put in place of CANCELLED
    with pytest.raises(RankTimeout, match=r"time is up after 120 s.*line 4"):
        job.conclude({0: replace(job.states()[0], word="TIMEOUT")})


def test_a_sweep_runs_once_for_each_value(quick):
    body = "from workshop import report\nprint(base, lr)\nreport(product=base * lr)"
    sweep = jobs.Sweep("lr", (0.5, 0.25))
    job = jobs.submit(body, Job("sweep", "", nproc_per_node=1), quick, variables={"base": 8}, sweep=sweep)
    results = job.follow()
    assert {task: result[0].product for task, result in results.items()} == {0: 4.0, 1: 2.0}
    assert results.text == "task 0 (lr=0.5)\n[rank 0] 8 0.5\ntask 1 (lr=0.25)\n[rank 0] 8 0.25\n"
    assert results.labels == {0: "task 0 (lr=0.5)", 1: "task 1 (lr=0.25)"}


def test_a_training_on_two_nodes_has_the_losses_of_one_process_also_after_a_preemption(slurm, site, tmp_path):
    alone = train(small(), measured=False, **SETTINGS)
    program, variables = as_program(small(replicate=2), measured=False, **SETTINGS)
    wanted = Job("train", "", nnodes=2, requeue=True)
    job = jobs.submit(pausing(program), wanted, site, variables=variables)
    until(lambda: (job.tasks[0].directory / "task_0" / "files" / "paused").exists())
    preempt(slurm, tmp_path)
    seen = []
    result = job.follow(lambda first, text: seen.append(first))
    assert any("PENDING" in first for first in seen), "it waited again"
    assert result.notes == ("it was queued again once; this is start 2",)
    second = trained(result, measured=False)
    assert second.first_step == 4, "it went on from the last checkpoint"
    assert second.losses == pytest.approx(alone.losses[4:], rel=1e-5)
    first = [json.loads(line) for line in (job.directory / "task_0/files/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in first] == [1, 2, 3, 4, 5, 6]
    assert [line["loss"] for line in first] == pytest.approx(alone.losses, rel=1e-5)


NOTEBOOK = """
import sys, time
from dataclasses import replace
from workshop.site.current import current_site
from workshop.site.job import Job
from workshop.launch import jobs

site = replace(current_site(), python={python!r})
job = jobs.submit({program!r}, Job("mine", "", nproc_per_node=1), site, detach={detach})
print(job.number, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("detach", [False, True])
def test_a_killed_notebook_takes_its_jobs_along_unless_they_were_detached(slurm, quick, detach):
    body = (
        "from workshop import report\nimport time\ntime.sleep(0.5)\nreport(done=True)" if detach else SLEEPS
    )
    notebook = subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK.format(program=body, detach=detach, python=quick.python)],
        stdout=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    number = notebook.stdout.readline().strip()
    notebook.send_signal(signal.SIGKILL)
    notebook.wait(10)
    notebook.stdout.close()
    job = jobs.find(number, quick)
    if detach:
        assert job.follow()[0].done is True
        assert job.record.detached
    else:
        until(lambda: all(state.over for state in job.states().values()))
        assert job.states()[0].word == "CANCELLED"
        until(lambda: not [c for _, c in slurm.left() if "job_watchdog" in c or "job_rank" in c])


def test_a_controller_that_is_silent_is_named_within_the_time_limit(slurm, site, monkeypatch, tmp_path):
    conf = tmp_path / "slurm.conf"
    silent = __import__("socket").create_server(("127.0.0.1", 0))
    text = slurm.configuration.read_text()
    ours = next(line for line in text.splitlines() if line.startswith("SlurmctldPort="))
    conf.write_text(text.replace(ours, f"SlurmctldPort={silent.getsockname()[1]}"))
    monkeypatch.setenv("SLURM_CONF", str(conf))
    monkeypatch.setattr(client, "CLIENT_SECONDS", 1.0)
    with pytest.raises(SchedulerError, match=r"did not answer `squeue` within 1 s. `scontrol ping`"):
        client.queue()
    silent.close()


def test_told_that_time_is_nearly_up_it_queues_itself_again(slurm, quick):
    wanted = Job("again", "", nproc_per_node=1, requeue=True, signal="USR1@30")
    job = jobs.submit(SLEEPS, wanted, quick)
    until(lambda: "at work" in job.text())
    slurm.ask("scancel", "--signal=USR1", "--batch", job.number)  # as Slurm does it 30 s before the end
    until(lambda: job.states()[0].word == "PENDING")
    assert "told by USR1: queued again" in job.tasks[0].printed()
    job.cancel()


def test_a_rank_that_is_killed_is_started_again_within_the_job(slurm, site):
    """Its peer on the other node only waits, as with NCCL: torchrun counts a restart on one node alone."""
    body = """\
import os, signal, time
import torch
import torch.distributed as dist
from workshop import report

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
if attempt == "0" and os.environ["RANK"] == "1":
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
if attempt == "0":
    time.sleep(60)
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
report(total=total.item(), attempt=attempt)
dist.destroy_process_group()
"""
    wanted = Job("elastic", "", nnodes=2, nproc_per_node=1, max_restarts=1)
    result = jobs.submit(body, wanted, site).follow()
    assert [(result[rank].total, result[rank].attempt) for rank in (0, 1)] == [(2.0, "1"), (2.0, "1")]
    assert result.notes == ("all ranks were started again; this is attempt 2",)
