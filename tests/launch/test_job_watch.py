"""How often a scheduler and the ranks' files are looked at, told by a clock of our own."""

from __future__ import annotations

from collections import Counter

import pytest

from workshop.launch.jobs import directory as job_directory
from workshop.launch.jobs import submitted as submitted_jobs
from workshop.launch.jobs import watch
from workshop.launch.jobs.client import State
from workshop.launch.jobs.queue import states_of
from workshop.launch.jobs.record import Task, read_record, write_record
from workshop.launch.jobs.submitted import Submitted
from workshop.launch.jobs.watch import Pace, Watch
from workshop.site.job import Job
from workshop.site.spec import SiteSpec


class Days:
    """A clock whose hours pass in no time; ``at``: what happens when, in seconds."""

    def __init__(self):
        self.now = 1000.0
        self.at = {}
        self.looks = Counter()

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds
        for when in [when for when in self.at if when <= self.now - 1000.0]:
            self.at.pop(when)()


class Scheduler:
    """A stand-in that counts the questions."""

    def __init__(self, *jobs, word="PENDING"):
        self.jobs = dict.fromkeys(jobs, word)
        self.forgotten = {}
        self.questions = Counter()
        self.wobbles = False

    def queue(self):
        self.questions["queue"] += 1
        start = str(self.questions["queue"]) if self.wobbles else ""
        return {job: [State(job, None, word, "Priority", start)] for job, word in self.jobs.items()}

    def explained(self, job, listed):
        return listed

    def ended(self, jobs):
        self.questions["accounts"] += 1
        return {job: [State(job, None, self.forgotten[job])] for job in jobs if job in self.forgotten}


@pytest.fixture
def clock():
    return Days()


@pytest.fixture
def scheduler(monkeypatch, clock):
    scheduler = Scheduler("7")
    monkeypatch.setattr(watch, "_watches", {"slurm": Watch(scheduler, clock)})
    return scheduler


@pytest.fixture
def job(tmp_path, clock, scheduler, monkeypatch):
    site = SiteSpec(scheduler="slurm", jobs=str(tmp_path / "jobs"))
    directory, record = job_directory.prepare("print()", site, Job("t", "", nproc_per_node=2))
    write_record(directory, record := submitted_jobs.replace(record, job="7"))
    began = Task.began

    def counted(task):
        clock.looks["files"] += 1
        return began(task)

    monkeypatch.setattr(Task, "began", counted)
    return Submitted(directory, record, clock=clock)


def begin(job, scheduler, clock):
    scheduler.jobs["7"] = "RUNNING"
    for rank in (0, 1):
        job.tasks[0].rank_dir(rank).mkdir(parents=True)


def end(job, scheduler):
    (job.directory / "task_0" / "start_0" / "exit").write_text("0\n")
    scheduler.jobs["7"] = "COMPLETED"


def test_a_job_that_waits_for_three_days_is_asked_for_once_a_minute_and_begins_in_time(job, scheduler, clock):
    days = 3 * 86400
    heard = []
    clock.at = {
        days: lambda: begin(job, scheduler, clock),
        days + 30: lambda: (job.tasks[0].rank_dir(0) / "log").write_text("hello\n"),
        days + 60: lambda: end(job, scheduler),
    }
    scheduler.wobbles = True  # the expected start moves with each look: that is no change of state
    result = job.follow(lambda first, text: heard.append((clock.now - 1000.0, first, text)))
    assert result.text == "[rank 0] hello\n"
    assert scheduler.questions["queue"] < days / 60 + 250, "five seconds apart it would be 51,840"
    assert clock.looks["files"] < days / 10 + 1000, "five times a second it would be 1,296,000"
    early = [when for when, *_ in heard if when < 60]
    assert len(early) > 10, "at first it is asked often"
    running = next(when for when, first, _ in heard if "RUNNING" in first)
    assert days <= running <= days + 11, "the batch script's folder on the disk says that it has begun"
    printed = next(when for when, _, text in heard if "hello" in text)
    assert printed <= days + 35
    assert clock.now - 1000.0 <= days + 75, "its exit code on the disk makes the scheduler be asked at once"


def test_output_that_comes_is_seen_at_once_and_a_silent_program_costs_little(job, scheduler, clock):
    seen = {}
    log = job.tasks[0].rank_dir(0)

    def say(word):
        def happen():
            with (log / "log").open("a") as file:
                file.write(f"{word}\n")

        return happen

    clock.at = {1.0: lambda: begin(job, scheduler, clock)}
    clock.at |= {10.0 + k / 2: say(f"line {k}") for k in range(60)}
    clock.at |= {50_000.0: say("late"), 50_100.0: lambda: end(job, scheduler)}

    def shown(_first, text):
        for line in text.splitlines():
            seen.setdefault(line.partition("] ")[2], clock.now - 1000.0)

    job.follow(shown)
    delays = [seen[f"line {k}"] - (10.0 + k / 2) for k in range(60)]
    assert max(delays[1:]) <= 0.5
    assert seen["late"] - 50_000.0 <= 11
    assert clock.looks["files"] < 7000, "five times a second it would be 250,000"


def test_a_requeued_job_that_waits_again_is_not_taken_for_ended(job, scheduler, clock):
    begin(job, scheduler, clock)

    def requeue():
        (job.directory / "task_0" / "start_0" / "exit").write_text("143\n")
        scheduler.jobs["7"] = "PENDING"

    def again():
        scheduler.jobs["7"] = "RUNNING"
        (job.directory / "task_0" / "start_1" / "attempt_0" / "rank_0").mkdir(parents=True)

    def over():
        (job.directory / "task_0" / "start_1" / "exit").write_text("0\n")
        scheduler.jobs["7"] = "COMPLETED"

    clock.at = {100.0: requeue, 9000.0: again, 9100.0: over}
    assert job.follow().notes == ("it was queued again once; this is start 2",)
    assert scheduler.questions["queue"] < 500


def test_all_jobs_are_asked_for_in_one_question(tmp_path, scheduler):
    for number in ("8", "9"):
        scheduler.jobs[number] = "RUNNING"
    scheduler.forgotten = {"4": "COMPLETED"}  # of 3 nobody knows anything any more
    site = SiteSpec(scheduler="slurm", jobs=str(tmp_path / "jobs"))
    handed_in = []
    for number in ("3", "4", "7", "8", "9"):
        directory, _ = job_directory.prepare("print()", site, Job("t", ""))
        write_record(directory, record := submitted_jobs.replace(read_record(directory), job=number))
        handed_in.append(Submitted(directory, record))
    words = {number: states[0].word for number, states in states_of(handed_in).items()}
    assert words == {"3": "CANCELLED", "4": "COMPLETED", "7": "PENDING", "8": "RUNNING", "9": "RUNNING"}
    assert scheduler.questions == {"queue": 1, "accounts": 1}
    for job in handed_in:
        job.states(max_age=60.0)
    assert scheduler.questions == {"queue": 1, "accounts": 1}
    scheduler.forgotten = {}
    assert states_of(handed_in)["4"][0].word == "COMPLETED", "what the accounts tell of an end stays"
    assert scheduler.questions == {"queue": 2, "accounts": 2}


def test_a_job_that_was_handed_in_after_the_last_question_is_asked_for(scheduler, clock):
    known = Watch(scheduler, clock)
    known.states({"7": [0]})
    scheduler.jobs["8"] = "PENDING"
    assert known.states({"8": [0]}, max_age=60.0)["8"][0].word == "PENDING"
    known.states({"7": [0], "8": [0]}, max_age=60.0)
    assert scheduler.questions == {"queue": 2}


def test_a_pace():
    pace = Pace(0.5, 60.0, now=0.0)
    waits, now = [], 0.0
    while now < 7200:
        assert pace.due(now)
        pace.looked(now, changed=False)
        waits.append(round(pace.left(now), 3))
        now += pace.left(now)
    assert waits[0] == 0.5
    assert waits == sorted(waits)
    assert waits[-1] == 60.0
    pace.hurry(now)
    assert pace.due(now)
    pace.looked(now, changed=False)
    assert pace.left(now) == 0.5


def test_replicas_are_one_job_to_the_scheduler(tmp_path, clock, scheduler):
    site = SiteSpec(scheduler="slurm", jobs=str(tmp_path / "jobs"))
    directory, record = job_directory.prepare("print()", site, Job("t", "", replicas=3))
    job = Submitted(directory, submitted_jobs.replace(record, job="7"), clock=clock)
    assert {state.word for state in job.states().values()} == {"PENDING"}
    scheduler.jobs["7"] = "RUNNING"
    assert [state.word for state in job.states().values()] == ["RUNNING"] * 3
    assert scheduler.questions == {"queue": 2}, "the accounts are not asked for a job that the queue knows"
    for number, code in ((0, 0), (1, 1), (2, 0)):
        exit_file = directory / f"task_{number}" / "start_0" / "exit"
        exit_file.parent.mkdir(parents=True)
        exit_file.write_text(str(code))
    assert [state.word for state in job.states().values()] == ["RUNNING"] * 3, "until the job is over"
    scheduler.jobs["7"] = "FAILED"
    assert [state.word for state in job.states().values()] == ["COMPLETED", "FAILED", "COMPLETED"]
