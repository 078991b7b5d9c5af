"""Slurm's clients, each with a time limit: submit, look, cancel, queue again.

A controller that is down does not refuse; it is silent, and ``squeue`` waits for it for ever. So every call
here ends after `CLIENT_SECONDS`, and says what to do.

What has become of a job is asked in two places: ``squeue --states=all``, which knows a job while it waits and
runs and for some minutes after (``MinJobAge``), then ``sacct``, which knows it for ever where the cluster
keeps accounts. A cluster that keeps none leaves the job's own record (`jobs.directory`).

Sources: Slurm, ``sbatch(1)``, ``squeue(1)`` (states and reasons), ``sacct(1)``, ``scancel(1)``.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from workshop.launch.jobs.client import SchedulerError, State, run_client
from workshop.site.job import Job
from workshop.site.slurm_script import slurm_script
from workshop.site.spec import SiteSpec

CLIENT_SECONDS = 20.0
SUBMIT, SCRIPT = "sbatch", "job.sbatch"
REASONS = {
    "Resources": "the nodes it needs are taken",
    "Priority": "others are before it in the queue",
    "None": "the scheduler has not looked at it yet",
    "BeginTime": "it may not start before the time shown",
    "Dependency": "it waits for another job",
    "JobHeldUser": "you hold it: scontrol release",
    "JobHeldAdmin": "an administrator holds it",
    "PartitionTimeLimit": "it asks for more time than the partition allows, and will never start: --time",
    "PartitionNodeLimit": "it asks for more nodes than the partition gives, and will never start: --nodes",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs now",
    "ReqNodeNotAvail": "nodes it needs are down, drained or reserved",
    "Reservation": "it waits for its reservation to begin",
    "ReservationDeleted": "its reservation is gone, and it will never start: --reservation",
    "InvalidAccount": "the account does not exist, and it will never start: account of the site's file",
    "InvalidQOS": "its quality of service does not exist, and it will never start",
    "JobArrayTaskLimit": "as many of its array as may run at once do run",
    "launch failed requeued held": "it could not be started and is held: scontrol release",
}


class SlurmError(SchedulerError):
    """Slurm could not be asked, or refused; the message says what to do."""


def script(site: SiteSpec, job: Job) -> str:
    """The text of the batch script (`site.slurm_script`)."""
    return slurm_script(site, job)


def submit_flags(_site: SiteSpec) -> list[str]:
    """Nothing: the script says it all."""
    return []


def call(*words: str) -> str:
    """What a client of Slurm prints.

    Raises SlurmError: there is no such client here, the controller does not answer, or it refuses.
    """
    done = _run(words)
    if done.returncode:
        refusal = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise SlurmError(f"{words[0]} refused: {_plain(refusal)}")
    return done.stdout


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return run_client(
        words,
        CLIENT_SECONDS,
        SlurmError,
        missing=f"there is no Slurm here: no `{words[0]}` on PATH. On a cluster, run the notebook on a login "
        "node (or `module load slurm`); here, run the cell with %%torchrun",
        silent=f"Slurm's controller did not answer `{words[0]}` within {CLIENT_SECONDS:g} s. `scontrol ping` "
        "says whether it is up; a job that was submitted goes on without us (`workshop jobs`)",
    )


def _plain(text: str) -> str:
    """The lines of a refusal without ``sbatch: error:`` before each."""
    return "; ".join(
        re.sub(r"^\w+: (error: )?", "", line).strip() for line in text.splitlines() if line.strip()
    )


def submit(script: str | Path, flags: Sequence[str] = ()) -> str:
    """Hand a batch script in; the job's number. Raises SlurmError with what sbatch said against it."""
    return call("sbatch", "--parsable", *flags, str(script)).strip().split(";")[0]


def check_script(text: str, flags: Sequence[str] = ()) -> str:
    """``sbatch --test-only``: when and where a job with this batch script would start. None is made.

    Raises SlurmError where it never could.
    """
    with tempfile.TemporaryDirectory(prefix="workshop-") as folder:
        path = Path(folder) / SCRIPT
        path.write_text(text, encoding="utf-8")
        done = _run(("sbatch", "--test-only", *flags, str(path)))
    if done.returncode:
        raise SlurmError(f"sbatch would refuse it: {_plain(done.stderr)}")
    return _plain(done.stderr)


def queue() -> dict[str, list[State]]:
    """Every job of this user that Slurm still knows: one state, or one for each element of an array.

    Raises SlurmError where it cannot be asked.
    """
    known: dict[str, list[State]] = {}
    listing = call(
        "squeue",
        f"--user={os.getuid()}",
        "--states=all",
        "--array",
        "--noheader",
        "--format=%F|%K|%T|%r|%S|%N",
    )
    for line in listing.splitlines():
        if line.count("|") == 5:
            state = _row(line.split("|"))
            known.setdefault(state.job, []).append(state)
    return known


def explained(_job: str, listed: list[State]) -> list[State]:
    """As they are: ``squeue`` has told the reasons."""
    return listed


def _row(parts: Sequence[str]) -> State:
    number, task, word, reason, start, nodes = (part.strip() for part in parts)
    known = State(number, int(task) if task.isdigit() else None, word, reason, start, nodes)
    return replace(known, why=plain_reason(reason)) if known.waits else known


def plain_reason(reason: str) -> str:
    """A reason to wait, in words; "" where there are none."""
    if re.match(r"(QOS|Assoc).*(Limit|Grp|Max)", reason):
        return "a limit of your account or its quality of service is reached"
    return REASONS.get(reason, "")


def ended(jobs: Mapping[str, Collection[int]]) -> dict[str, list[State]]:
    """From ``sacct``, in one question; {} where there are no accounts.

    Its word is asked for elements with a record too: only Slurm tells that the time was up, or a node's
    memory full.
    """
    try:
        listing = call(
            "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(jobs)}",
            "--format=JobID,State,ExitCode,NodeList",
        )  # fmt: skip
    except SlurmError:  # accounting is disabled, or sacct is not installed: the job's own record must do
        return {}
    known: dict[str, list[State]] = {}
    for line in listing.splitlines():
        identity, word, code, nodes = line.split("|")
        number, _, task = identity.partition("_")
        word = word.split()[0] if word else "UNKNOWN"  # "CANCELLED by 1000"
        index = int(task) if task.isdigit() else None
        known.setdefault(number, []).append(State(number, index, word, nodes=nodes, exit_code=code))
    return known


def cancel(job: str) -> None:
    """End a job; nothing happens to one that has ended. Raises SlurmError where Slurm cannot be asked."""
    try:
        call("scancel", job)
    except SlurmError as error:
        if "Invalid job id" not in str(error) and "already completing" not in str(error).lower():
            raise


def requeue(job: str) -> None:
    """Back into the queue, as a preemption does. Raises SlurmError where the job may not be."""
    call("scontrol", "requeue", job)


def nodes() -> dict[str, str]:
    """Every node and its state, as ``sinfo`` tells them."""
    lines = call("sinfo", "--Node", "--noheader", "--format=%N|%T").splitlines()
    return dict(line.strip().split("|") for line in lines if "|" in line)
