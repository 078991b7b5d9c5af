"""Jobs on a real Grid Engine of two execution hosts: handed in, followed, cancelled, queued again, swept, found."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from tests.cluster.grid_engine import RESENT_SECONDS
from tests.cluster.without_torch import python_without_torch
from workshop.launch import RankFailed, RankInterrupted, RankTimeout, jobs
from workshop.launch.jobs import grid_engine as client
from workshop.launch.jobs.client import SchedulerError
from workshop.launch.jobs.ending import AGAIN_SECONDS
from workshop.launch.processes import ProcessId, wait_gone
from workshop.site.job import Job
from workshop.site.spec import read_site

pytestmark = pytest.mark.cluster

SLEEPS = "import time\nprint('at work', flush=True)\ntime.sleep(60)"


@pytest.fixture
def site(grid_engine):
    return read_site(grid_engine.site)


@pytest.fixture
def quick(grid_engine, site):
    """The same site where ranks start without torch: for what is the scheduler's."""
    return replace(site, python=python_without_torch(grid_engine.base))


def until(happened, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


SHAPES = {
    "plain": Job("plain", "", nproc_per_node=2),
    "two nodes": Job("2 nodes", "", nnodes=2, nproc_per_node=2, time="00:01:00"),
    "requeue": Job("again", "", requeue=True, signal="USR1@30", max_restarts=2),
    "array": Job("many", "", array="0-6:2%2"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_qsub_accepts_the_script(site, shape):
    assert "found suitable queue" in jobs.check(SHAPES[shape], site)


def test_qsub_refuses_a_script_that_can_never_run(site):
    with pytest.raises(SchedulerError, match="would refuse it: .*only offers 2 slots"):
        jobs.check(Job("big", "", nnodes=3), site)
    with pytest.raises(SchedulerError, match='^qsub refused: unknown resource "nosuch"'):
        jobs.submit("print()", Job("j", ""), replace(site, directives=("-l nosuch=1",)))


ALL_REDUCE = """\
import os
import torch
import torch.distributed as dist
from workshop import report

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + gift])
dist.all_reduce(total)
print("sum", total.item())
own = {name: os.environ[name] for name in ("WORKSHOP_JOB", "WORKSHOP_JOB_TASK", "JOB_ID")}
report(total=total, group=int(os.environ["GROUP_RANK"]), host=os.uname().nodename, **own)
dist.destroy_process_group()
"""


def test_two_nodes_sum_up_and_report(site):
    said = []
    job = jobs.submit(
        ALL_REDUCE, Job("2nd sum", "", nnodes=2, nproc_per_node=1), site, variables={"gift": 10}
    )
    result = job.follow(lambda *shown: said.append(shown))
    assert [result[rank].total.tolist() for rank in range(2)] == [[21]] * 2
    assert {(result[rank].group, result[rank].host) for rank in range(2)} in (
        {(0, "ge-node1"), (1, "ge-node2")},
        {(0, "ge-node2"), (1, "ge-node1")},
    )
    assert {
        (result[rank].WORKSHOP_JOB, result[rank].JOB_ID, result[rank].WORKSHOP_JOB_TASK) for rank in range(2)
    } == {(job.number, job.number, "0")}
    assert result.text == "[ranks 0-1] sum 21\n"
    assert result.device == f"job {job.number}: 2 nodes of 1 rank on CPU, gloo"
    assert any(re.search("RUNNING on ge-node[12], ge-node[12]", first) for first, _ in said)
    assert job.states()[0].word == "COMPLETED"


def test_a_rank_that_fails_on_the_other_node_is_named_with_its_line(site):
    body = """\
import os
import torch.distributed as dist

dist.init_process_group("gloo")
if os.environ["RANK"] == "1":
    print("about to fail")
    {}["no such key"]
dist.barrier()
"""
    with pytest.raises(RankFailed) as caught:
        jobs.submit(body, Job("fails", "", nnodes=2, nproc_per_node=1), site).follow()
    failure = caught.value.failures[0]
    assert (failure.rank, failure.error_type, failure.line) == (1, "KeyError", 8)
    assert str(caught.value).startswith("rank 1 raised KeyError first, line 8")
    assert caught.value.result.text == "[rank 1] about to fail\n"


def test_a_script_that_fails_before_its_ranks_shows_its_own_words(site):
    site = replace(site, python="/no/such/python")
    with pytest.raises(
        SchedulerError, match=r"(?s)ended as FAILED before its ranks had started.*no/such/python"
    ):
        jobs.submit("print()", Job("lost", ""), site).follow()


def test_one_host_in_place_of_two_is_refused_in_words(site):
    site = replace(site, directives=("-pe node 1", "-v NEVER={nnodes}"))
    with pytest.raises(
        SchedulerError, match=r"(?s)before its ranks.*asked for 2 nodes, was given 1: ge-node"
    ):
        jobs.submit("print()", Job("short", "", nnodes=2), site).follow()


def test_why_it_waits_is_said_and_the_stop_button_takes_it_out_of_the_queue(grid_engine, site):
    said = []

    def stop_when_told(first, text):
        said.append(first)
        if "only offers" in first:
            raise KeyboardInterrupt

    job = jobs.submit("print()", Job("waits", "", nnodes=3), site)
    watchdog = job._watchdog
    with pytest.raises(RankInterrupted, match=f"job {job.number} was cancelled and is gone"):
        job.follow(stop_when_told)
    assert 'PENDING (cannot run in PE "node" because it only offers 2 slots)' in said[-1]
    assert grid_engine.queue() == []
    assert (watchdog.poll(), job.states()[0].word) == (0, "CANCELLED")


def test_one_in_an_error_state_says_which(site):
    site = replace(site, directives=("-pe node {nnodes}", "-wd /no/such/folder"))
    job = jobs.submit("print()", Job("lost", ""), site)
    until(lambda: "ERROR" in job.sentence(job.states()))
    assert "can't chdir to /no/such/folder" in job.sentence(job.states())
    assert "mend the cause first" in job.sentence(job.states())
    job.cancel()


def test_the_stop_button_ends_ranks_that_work_and_their_place_is_known(grid_engine, site):
    def stop_when_at_work(first, text):
        if "at work" in text:
            raise KeyboardInterrupt

    job = jobs.submit(f"import torch\n{SLEEPS}", Job("works", "", nproc_per_node=1), site)
    with pytest.raises(RankInterrupted) as caught:
        job.follow(stop_when_at_work)
    assert caught.value.result.text == "[rank 0] at work\n"
    assert grid_engine.queue() == []
    process = ProcessId(*json.loads((job.tasks[0].rank_dir(0) / "process.json").read_text()))
    assert wait_gone([process], 5.0) == []
    assert job.states()[0].word == "CANCELLED"


def test_a_time_that_is_up_is_told_with_the_place_of_the_ranks(quick):
    with pytest.raises(RankTimeout, match=r"time is up after 8 s.*line 4"):
        jobs.submit(SLEEPS, Job("long", "", nproc_per_node=1, time="00:00:08"), quick).follow()


def test_one_that_somebody_else_deleted_is_no_timeout(grid_engine, quick):
    job = jobs.submit(SLEEPS, Job("deleted", "", nproc_per_node=1), quick)
    until(lambda: "at work" in job.text())
    grid_engine.ask("qdel", job.number)
    with pytest.raises(RankFailed, match="ended as KILLED: somebody deleted it"):
        job.follow()


def test_a_sweep_runs_once_for_each_value_and_two_on_one_node_do_not_meet(grid_engine, site):
    """Each waits until the other is there too, so they are side by side; and each has a group of its own."""
    body = """\
import os, pathlib, time
import torch.distributed as dist
from workshop import report

dist.init_process_group("gloo")
task, here, deadline = os.environ["WORKSHOP_JOB_TASK"], pathlib.Path(folder), time.monotonic() + 80
(here / task).touch()
while len(list(here.iterdir())) < 2 and time.monotonic() < deadline:
    time.sleep(0.05)
report(product=base * lr, task=task, there=len(list(here.iterdir())), ranks=dist.get_world_size())
"""
    folder = grid_engine.base / "side by side"
    folder.mkdir()
    site = replace(site, directives=("-pe node {nnodes}", "-q lab.q@ge-node1"))
    sweep = jobs.Sweep("lr", (0.5, 0.25))
    results = jobs.submit(
        body,
        Job("sweep", "", nproc_per_node=1),
        site,
        variables={"base": 8, "folder": str(folder)},
        sweep=sweep,
    ).follow()
    assert {task: (result[0].product, result[0].task) for task, result in results.items()} == {
        0: (4.0, "0"),
        1: (2.0, "1"),
    }
    assert {(result[0].there, result[0].ranks) for result in results.values()} == {(2, 1)}
    assert results.labels == {0: "task 0 (lr=0.5)", 1: "task 1 (lr=0.25)"}


COUNTS = """\
import os, pathlib, time
from workshop import report

starts = pathlib.Path(os.environ["WORKSHOP_JOB_FILES"], "starts")
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
print("start", os.environ["WORKSHOP_JOB_START"], flush=True)
time.sleep(0 if len(starts.read_text()) == LAST else 60)
report(starts=starts.read_text())
"""


def test_a_node_lost_twice_and_the_job_goes_on_with_its_own_files(quick):
    job = jobs.submit(COUNTS, Job("again", "", nproc_per_node=1, requeue=True), quick, variables={"LAST": 3})
    for start in range(2):
        until(lambda start=start: f"start {start}" in job.text())
        client.requeue(job.number)
    result = job.follow()
    assert result[0].starts == "xxx"
    assert result.notes == ("it was queued again 2 times; this is start 3",)
    assert result.text.endswith("[rank 0] start 2\n")


def test_a_node_lost_and_ranks_with_the_real_torch_go_on(site):
    job = jobs.submit(COUNTS, Job("again", "", nproc_per_node=1, requeue=True), site, variables={"LAST": 2})
    until(lambda: "start 0" in job.text())
    client.requeue(job.number)
    result = job.follow()
    assert result[0].starts == "xx"
    assert result.text.endswith("[rank 0] start 1\n")


def test_told_that_time_is_nearly_up_it_queues_itself_again(quick):
    wanted = Job("again", "", nproc_per_node=1, requeue=True, signal="USR1@20", time="00:00:25")
    job = jobs.submit(COUNTS, wanted, quick, variables={"LAST": 2})
    result = job.follow()
    assert result[0].starts == "xx"
    assert "told by USR1: queued again" in job.tasks[0].printed()


@pytest.mark.parametrize("detach", [False, True])
def test_a_notebook_that_is_killed_takes_its_job_along_unless_it_was_detached(quick, detach):
    code = """\
import time
from workshop.launch import jobs
from workshop.site.job import Job
from dataclasses import replace
from workshop.site.current import current_site
job = jobs.submit("import time; time.sleep({sleep}); from workshop import report; report(done=True)",
                  Job("left", "", nproc_per_node=1), replace(current_site(), python={python!r}), detach={detach})
print(job.number, flush=True)
time.sleep(200)
"""
    notebook = subprocess.Popen(
        [sys.executable, "-c", code.format(sleep=1 if detach else 200, detach=detach, python=quick.python)],
        stdout=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    number = notebook.stdout.readline().strip()
    notebook.send_signal(signal.SIGKILL)
    notebook.wait(10)
    notebook.stdout.close()
    job = jobs.find(number, quick)
    if detach:
        assert job.follow()[0].done is True
    else:
        # Where the signal is lost, the watchdog's second one comes after a minute.
        until(lambda: all(state.over for state in job.states().values()), RESENT_SECONDS + 30)
        assert job.states()[0].word == "CANCELLED"


def test_a_job_whose_node_did_not_hear_the_cancel_is_asked_for_again_until_it_is_gone(grid_engine, quick):
    """The host's daemon is stopped for longer than the qmaster waits before it asks a host again."""
    job = jobs.submit(SLEEPS.replace("60", "600"), Job("deaf", "", nproc_per_node=1), quick)
    until(lambda: "at work" in job.text())
    process = ProcessId(*json.loads((job.tasks[0].rank_dir(0) / "process.json").read_text()))
    node = job.states()[0].nodes
    with grid_engine.frozen(node):
        told = []
        cancelling = threading.Thread(target=lambda: told.append(job.cancel()))
        cancelling.start()
        until(lambda: client.queue()[job.number][0].word == "COMPLETING")
        time.sleep(AGAIN_SECONDS + 5)
        assert process.alive(), "its node has heard nothing"
    cancelling.join(60)
    assert re.fullmatch(
        rf"job {job.number} was cancelled and is gone; that took 2 calls and \d+ s, .*", told[0]
    ), told
    assert grid_engine.queue() == []
    assert wait_gone([process], 5.0) == []
    assert job.states()[0].word == "CANCELLED"
