"""What of jobs needs no Slurm: the directory, how an end is read, the clients' answers (told by stand-ins)."""

import json
import os
import re
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from workshop.launch import Cell, EngineError, RankFailed, RankTimeout, Script, jobs
from workshop.launch.child import job_watchdog
from workshop.launch.jobs import directory as job_directory
from workshop.launch.jobs import end as job_end
from workshop.launch.jobs import queue, slurm, submitted, watch
from workshop.launch.jobs.client import SchedulerError, State
from workshop.launch.jobs.options import chosen_site, job_of, sweep_of
from workshop.launch.jobs.record import Task, indices, read_record, write_record
from workshop.launch.jobs.slurm import SlurmError
from workshop.launch.jobs.watch import Watch
from workshop.launch.messages import JobProgram, read_file
from workshop.launch.rank_folder import JOB_PROGRAM
from workshop.launch.report import dumped
from workshop.launch.request import unpickled
from workshop.site.job import Job
from workshop.site.spec import SiteSpec


@pytest.fixture
def site(tmp_path):
    return SiteSpec(name="here", scheduler="slurm", jobs=str(tmp_path / "jobs"))


@pytest.fixture
def clients(tmp_path, monkeypatch):
    """Stand-ins for Slurm's clients: each is a shell line."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def write(name, line):
        path = folder / name
        path.write_text(f"#!/bin/bash\n{line}\n")
        path.chmod(0o755)

    for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo"):
        write(name, "echo 'not asked for' >&2; exit 9")
    return write


@pytest.mark.parametrize(
    ("array", "found"), [("", (0,)), ("0-3", (0, 1, 2, 3)), ("2", (2,)), ("0-6:2,9%2", (0, 2, 4, 6, 9))]
)
def test_indices(array, found):
    assert indices(array) == found


def test_the_directory_holds_all_that_the_ranks_need_and_is_the_users_alone(site):
    job = Job("my run", "", nnodes=2, nproc_per_node=4, array="0-1")
    directory, record = job_directory.prepare(
        Cell("print(lr)", "%%sbatch -N 2"), site, job, {"gift": 3}, ("lr", (0.5, "warm"))
    )
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "cell.py").read_text() == "# %%sbatch -N 2\nprint(lr)"
    assert unpickled(directory / "passed_1.pkl") == {"gift": 3, "lr": "warm"}
    assert read_record(directory) == record
    assert record.sweep == (("lr", "0.5"), ("lr", "'warm'"))
    assert replace(record, job="7").sentence == "job 7: 2 nodes of 4 ranks on CPU, gloo, 2 times"
    text = (directory / "job.sbatch").read_text()
    assert f"--module workshop.launch.child.job_rank {directory}" in text
    assert f"#SBATCH --output={directory}/%x-%A_%a.out" in text
    assert "export CUDA_VISIBLE_DEVICES=''" in text


def test_nodes_with_the_notebooks_python_find_the_workshop_where_it_is(site):
    text = queue.try_out(Job("t", ""), site)
    folder = next(line for line in text.splitlines() if line.startswith("export PYTHONPATH=")).partition("=")[
        2
    ]
    assert (Path(folder) / "workshop" / "launch" / "jobs" / "directory.py").is_file()


def test_each_replica_is_told_by_its_own_end(site):
    directory, record = job_directory.prepare("1 / 0", site, Job("t", "", replicas=2))
    record = replace(record, job="7")
    assert record.sentence == (
        "job 7: 1 node, 2 replicas of 1 rank on CPU, gloo; everybody on that machine can reach them"
    )
    tasks = {number: Task(directory, record, number) for number in record.tasks}
    for number, code in ((0, 0), (1, 1)):
        tasks[number].rank_dir(0).mkdir(parents=True)
        (directory / f"task_{number}" / "start_0" / "exit").write_text(str(code))
    (tasks[0].rank_dir(0) / "report.data").write_bytes(b"".join(dumped({"loss": 2})))
    (tasks[1].rank_dir(0) / "failure.json").write_text(
        json.dumps(
            {**RECORD, "frames": [{"file": str(directory / "cell.py"), "line": 2, "name": "f", "source": ""}]}
        )
    )
    told = State("7", None, "FAILED")  # of the job: the highest code of all
    states = {number: job_end.settled(task, told) for number, task in tasks.items()}
    assert [state.word for state in states.values()] == ["COMPLETED", "FAILED"]
    with pytest.raises(RankFailed, match="^replica 1: rank 0 raised KeyError, line 2") as caught:
        job_end.conclude(record, tasks, states, "", 1.0)
    assert caught.value.result[0][0].loss == 2
    assert job_end.settled(tasks[1], State("7", None, "RUNNING")).word == "RUNNING"


def test_a_script_stays_where_it_is(site, tmp_path):
    program = tmp_path / "train.py"
    program.write_text("print(1)")
    directory, record = job_directory.prepare(Script(program, ("--lr", "1")), site, Job("t", ""))
    of_job = read_file(JobProgram, directory / JOB_PROGRAM)
    assert (of_job.program.file, of_job.program.args) == (str(program), ("--lr", "1"))
    assert (of_job.sweep, of_job.replicas, of_job.one_node) == (False, 0, True)
    assert record.label == "train.py"


def test_a_place_that_cannot_be_written_is_told(site, tmp_path):
    (tmp_path / "jobs").write_text("a file")
    with pytest.raises(EngineError, match="cannot write a job's directory under .*paths. jobs"):
        job_directory.prepare("print()", site, Job("t", ""))


@pytest.fixture
def task(site):
    """A job of two ranks that has begun."""
    directory, record = job_directory.prepare(
        "line_two()\nline_three()", site, Job("t", "", nproc_per_node=2)
    )
    task = Task(directory, replace(record, job="7"), 0)
    for rank in (0, 1):
        task.rank_dir(rank).mkdir(parents=True)
    return task


def ended(task, word, **files):
    """Conclude with Slurm's word, after the given files were left by the ranks."""
    for name, text in files.items():
        rank, _, file = name.partition("_")
        path = task.rank_dir(int(rank[1:])) / file.replace("failure", "failure.json")
        path.write_text(text)
    return job_end.conclude(task.record, {0: task}, {0: State("7", None, word)}, "[rank 0] text\n", 1.0)


def test_a_result(task):
    (task.rank_dir(1) / "report.data").write_bytes(b"".join(dumped({"loss": 2})))
    result = ended(task, "COMPLETED", r0_done="", r1_done="")
    assert (result[1].loss, result.text, dict(result[0])) == (2, "[rank 0] text\n", {})


def test_a_start_and_an_attempt_before_are_noted(task):
    again = task.directory / "task_0" / "start_1" / "attempt_2" / "rank_0"
    again.mkdir(parents=True)
    result = ended(task, "COMPLETED")
    assert result.text.splitlines()[:2] == [
        "it was queued again once; this is start 2",
        "all ranks were started again; this is attempt 3",
    ]
    assert task.rank_dir(0) == again


RECORD = {"time": 5.0, "type": "KeyError", "message": "'x'", "cause": None, "syntax": None}


def test_a_rank_that_raised(task):
    frames = [{"file": task.record.program, "line": 3, "name": "<module>", "source": "line_three()"}]
    with pytest.raises(RankFailed, match="rank 1 raised KeyError first, line 3") as caught:
        ended(task, "FAILED", r1_failure=json.dumps({**RECORD, "frames": frames}))
    assert caught.value.result.text == "[rank 0] text\n"


def test_a_record_that_is_none_is_named(task):
    told = r"rank_1/failure.json cannot be used \(FailureRecord.frames must be tuple.*another version"
    with pytest.raises(ValueError, match=told):
        ended(task, "FAILED", r1_failure=json.dumps({**RECORD, "frames": None}))


def test_a_rank_of_which_only_torchrun_knows(task):
    task.output().write_text("  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 12)\n")
    with pytest.raises(RankFailed, match="rank 1 died first") as caught:
        ended(task, "FAILED", r1_log="")
    assert "SIGKILL" in str(caught.value)


@pytest.mark.parametrize("word", ["NODE_FAIL", "OUT_OF_MEMORY", "CANCELLED", "GONE"])
def test_words_of_slurm_are_explained(task, word):
    with pytest.raises(RankFailed) as caught:
        ended(task, word)
    assert f"job 7 ended as {word}: {job_end.MEANING[word]}" in str(caught.value)


def test_time_is_up(task):
    with pytest.raises(RankTimeout, match=r"(?s)time is up after 600 s.*job 7: its --time was 10 min"):
        ended(task, "TIMEOUT")


def test_no_rank_began(task):
    for rank in (0, 1):
        task.rank_dir(rank).rmdir()
    task.output().write_text("module: command not found\n")
    with pytest.raises(
        SchedulerError, match=r"(?s)ended as FAILED before its ranks had started.*command not found"
    ):
        ended(task, "FAILED")


def test_a_job_that_slurm_forgot_is_read_from_its_own_record(task):
    assert job_end.from_record(task).word == "GONE"
    (task.directory / "task_0" / "start_0" / "exit").write_text("1\n")
    assert job_end.from_record(task).word == "FAILED"
    (task.directory / "task_0" / "start_0" / "exit").write_text("0\n")
    assert job_end.from_record(task).word == "COMPLETED"


def test_states_from_squeue(clients):
    clients("squeue", "echo '7|0|RUNNING|None|2026-01-01T00:00:00|node1'; echo '7|1|PENDING|Resources|N/A|'")
    running, pending = slurm.queue()["7"]
    assert (running.task, running.sentence, running.over) == (0, "RUNNING on node1", False)
    assert (pending.task, pending.waits) == (1, True)
    assert pending.sentence == "PENDING (Resources: the nodes it needs are taken)"


def test_states_from_the_accounts_when_squeue_has_forgotten(clients):
    clients("squeue", "true")
    clients("sacct", "echo '7|CANCELLED by 1000|0:15|node1'")
    (state,) = Watch(slurm).states({"7": [0]})["7"]
    assert (state.word, state.over, state.nodes) == ("CANCELLED", True, "node1")


def test_no_accounts_either(clients):
    clients("squeue", "true")
    clients("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert Watch(slurm).states({"7": [0]}) == {"7": []}


def test_an_expected_start_and_an_unknown_reason_are_shown_as_they_are():
    limit = slurm.plain_reason("QOSMaxJobsPerUserLimit")
    state = State("7", None, "PENDING", "QOSMaxJobsPerUserLimit", "2026-01-01T10:00:00", why=limit)
    assert "a limit of your account" in state.sentence
    assert state.sentence.endswith("expected to start at 2026-01-01T10:00:00")
    assert State("7", None, "PENDING", "NewReason", why=slurm.plain_reason("NewReason")).sentence == (
        "PENDING (NewReason)"
    )


def test_a_refusal_is_told_without_its_prefixes(clients):
    clients("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1")
    with pytest.raises(SlurmError, match="^sbatch refused: Batch job submission failed: Invalid account$"):
        slurm.submit("job.sbatch")


def test_a_silent_controller(clients, monkeypatch):
    clients("squeue", "exec sleep 600")
    monkeypatch.setattr(slurm, "CLIENT_SECONDS", 0.3)
    with pytest.raises(SlurmError, match="did not answer `squeue` within 0.3 s"):
        slurm.queue()


def test_no_slurm(monkeypatch, site):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SchedulerError, match="there is no Slurm here: no `sbatch` on PATH"):
        jobs.submit("print()", Job("t", ""), site)
    with pytest.raises(ValueError, match="'laptop' has no scheduler .*run the cell with %%torchrun"):
        jobs.submit("print()", Job("t", ""), SiteSpec())


def test_clients_see_which_slurm_and_nothing_of_an_outer_job(clients, monkeypatch):
    clients("sinfo", 'echo "$SLURM_CONF|${SLURM_PROCID:-none}"')
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert slurm.nodes() == {"/etc/slurm.conf": "none"}


@pytest.mark.parametrize("detach", [True, False])
def test_secrets_do_not_travel_with_a_job_unless_they_are_kept(clients, tmp_path, site, monkeypatch, detach):
    log = tmp_path / "seen"
    clients("sbatch", f"env > {log}; echo 7")
    clients("scancel", "true")
    told = {"JUPYTER_TOKEN": "a", "HF_TOKEN": "b", "AWS_ACCESS_KEY_ID": "c", "DB_PASSWORD": "d", "MINE": "e"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    job = jobs.submit("print()", Job("t", ""), replace(site, keep=("HF_TOKEN",)), detach=detach)
    seen = dict(line.partition("=")[::2] for line in log.read_text().splitlines())
    assert {name: seen[name] for name in told if name in seen} == {"HF_TOKEN": "b", "MINE": "e"}
    assert set(told) & set(job.left_out) == {"AWS_ACCESS_KEY_ID", "DB_PASSWORD", "JUPYTER_TOKEN"}
    assert job.without().startswith("left out of the job: AWS_ACCESS_KEY_ID, ")
    assert "(`keep` in [job] of the site's file" in job.without()
    if not detach:
        job.detach()


def test_the_watchdog_ends_the_job_of_a_notebook_that_is_gone(clients, tmp_path, site):
    log = tmp_path / "log"
    clients("sbatch", "echo 7")
    clients("scancel", f'echo "$@" >> {log}')
    clients("squeue", "")
    job = jobs.submit("print()", Job("t", ""), site)
    watchdog = job._watchdog
    watchdog.stdin.close()  # as the kernel does it for a process that is killed
    assert watchdog.wait(10) == 0
    assert log.read_text() == "7\n"
    watchdog.stdout.close()


class Deaf:
    """A scheduler, and its clock, whose node hears only the second call to end a job; each first answer is none."""

    def __init__(self, hears_after=2):
        self.now, self.asked, self.calls, self.hears_after = 0.0, [], 0, hears_after

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def cancel(self, job):
        self.calls += 1
        if self.calls == 1:
            raise SchedulerError("the qmaster did not answer")
        self.asked.append(self.now)

    def queue(self):
        return {} if len(self.asked) >= self.hears_after else {"7": [State("7", None, "COMPLETING")]}


def test_the_watchdog_asks_again_where_the_node_did_not_hear():
    deaf = Deaf()
    assert job_watchdog.ended(deaf, "7", deaf)
    first, second = deaf.asked
    assert first < 1
    assert 60 < second - first < 90  # within a minute Grid Engine would pass over it
    never = Deaf(hears_after=1000)
    assert not job_watchdog.ended(never, "7", never)
    assert never.now >= job_watchdog.PATIENCE.limit


class DeafQueue(Deaf):
    """The same for a notebook, which asks all at once: the first call is taken."""

    def __init__(self, hears_after=2):
        super().__init__(hears_after)
        self.calls = 1

    def ended(self, _jobs):
        return {}


def deaf_job(scheduler, site, monkeypatch):
    monkeypatch.setattr(watch, "_watches", {"slurm": watch.Watch(scheduler, scheduler)})
    directory, record = job_directory.prepare("print()", site, Job("t", "", nproc_per_node=1))
    write_record(directory, record := replace(record, job="7"))
    return submitted.Submitted(directory, record, clock=scheduler)


def test_cancel_asks_again_where_the_node_did_not_hear_and_says_so(site, monkeypatch):
    deaf = DeafQueue()
    said = deaf_job(deaf, site, monkeypatch).cancel()
    first, second = deaf.asked
    assert first == 0
    assert 60 < second - first < 90
    assert re.fullmatch(
        r"job 7 was cancelled and is gone; that took 2 calls and (6\d|7\d) s, for it was still there a minute after the first",
        said,
    )
    good = DeafQueue(hears_after=1)
    assert deaf_job(good, site, monkeypatch).cancel() == "job 7 was cancelled and is gone"
    assert good.asked == [0]


def test_cancel_ends_with_an_error_where_the_node_never_hears(site, monkeypatch):
    never = DeafQueue(hears_after=1000)
    job = deaf_job(never, site, monkeypatch)
    with pytest.raises(SchedulerError, match=r"job 7 was cancelled 3 times and is still there after 18\d s"):
        job.cancel()
    assert len(never.asked) == 3


class SilentQueue(DeafQueue):
    """It hears a call at once, but leaves questions of the seconds after it without an answer."""

    def __init__(self, until):
        super().__init__(hears_after=1)
        self.until = until

    def queue(self):
        if self.asked and self.now < self.until:
            raise SchedulerError("the qmaster did not answer")
        return super().queue()


def test_cancel_bears_a_scheduler_that_is_silent_for_a_while_after_it_took_the_call(site, monkeypatch):
    silent = SilentQueue(until=5)
    assert deaf_job(silent, site, monkeypatch).cancel().startswith("job 7 was cancelled and is gone")
    assert 5 <= silent.now < 60
    for_ever = SilentQueue(until=1e9)
    with pytest.raises(SchedulerError, match="the qmaster did not answer"):
        deaf_job(for_ever, site, monkeypatch).cancel()
    assert for_ever.now >= 180


def test_the_watchdog_lets_go_when_told(clients, tmp_path, site):
    clients("sbatch", "echo 7")
    job = jobs.submit("print()", Job("t", ""), site)
    watchdog = job._watchdog
    job.detach()
    assert watchdog.returncode == 0
    assert [found.record.detached for found in jobs.known(site)] == [True]


def test_jobs_are_found_again(clients, site):
    clients("sbatch", "echo 7")
    jobs.submit("print()", Job("t", ""), site, detach=True)
    clients("sbatch", "echo '8;cluster'")
    jobs.submit("print()", Job("u", ""), site, detach=True)
    Path(site.jobs, "something else").mkdir()
    assert [job.number for job in jobs.known(site)] == ["7", "8"]
    assert jobs.find(8, site).record.name == "u"
    with pytest.raises(ValueError, match=r"no job 9 in .* \(there: 7, 8\)"):
        jobs.find(9, site)


def test_a_sweep():
    assert sweep_of("lr=1e-3, 2,warm") == jobs.Sweep("lr", (1e-3, 2, "warm"))
    assert sweep_of(None) is None
    for text, said in (
        ("lr", "write a variable and its values"),
        ("l r=1", "no name of a variable"),
        ("lr=", "which"),
    ):
        with pytest.raises(ValueError, match=said):
            sweep_of(text)
    with pytest.raises(ValueError, match="leave --array out"):
        queue.with_array(Job("t", "", array="0-1"), jobs.Sweep("lr", (1,)))


def test_flags_become_a_job_of_the_sites_size(tmp_path):
    flags = Namespace(
        job_name="", nproc_per_node=None, nnodes=2, time="", array="", requeue=True, signal="", gpus_per_node=None,
        max_restarts=1, replicas=None, site=None,
    )  # fmt: skip
    job = job_of(flags, "cell", SiteSpec(gpus=4))
    assert (job.name, job.nproc_per_node, job.requeue) == ("cell", 4, True)
    assert job_of(flags, "cell", SiteSpec()).nproc_per_node == 2
    flags.replicas, flags.requeue = 3, False
    assert [job_of(flags, "cell", SiteSpec(gpus=gpus)).nproc_per_node for gpus in (0, 4)] == [1, 4]
    file = tmp_path / "site.toml"
    file.write_text('name = "mine"\n[paths]\njobs = "$HOME/j"\n')
    assert chosen_site(str(file)).jobs == f"{os.environ['HOME']}/j"


def test_jobs_load_no_torch():
    program = "import sys, workshop.launch.jobs.queue, workshop.cli.sbatch; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"
