"""Grid Engine's clients, each with a time limit: submit, look, cancel, queue again.

Grid Engine is a family (Sun's, Son of, Univa's, Altair's); what is asked here, all of them answer alike.
Three things differ from Slurm. Elements of an array count from 1; here, as everywhere in this package, from
0. A job that has ended is gone from ``qstat`` at once, and ``qacct`` knows it only some seconds later, after
reading the accounts of the whole centre from their beginning: so it is asked only for elements that left no
record of their own, which is those that were killed. And a job that could not be started is not over: it
stays in the queue in an error state (``Eqw``) until somebody clears or deletes it.

Sources: Grid Engine, ``qsub(1)``, ``qstat(1)`` (states), ``qacct(1)``, ``qmod(1)``, ``sge_status(5)`` (the
codes of ``failed``).
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from workshop.launch.jobs.client import SchedulerError, State, run_client
from workshop.site import sge_script
from workshop.site.job import Job
from workshop.site.spec import SiteSpec

CLIENT_SECONDS = 20.0
SUBMIT, SCRIPT = "qsub", "job.qsub"
RESCHEDULED, TIME_WAS_UP = 25, 37


class GridEngineError(SchedulerError):
    """Grid Engine could not be asked, or refused; the message says what to do."""


def script(site: SiteSpec, job: Job) -> str:
    """The text of the batch script (`site.sge_script`)."""
    return sge_script.sge_script(site, job)


def submit_flags(site: SiteSpec) -> list[str]:
    """The account, where the site's ``account_flag`` wants it on the command line."""
    return sge_script.submit_flags(site)


def call(*words: str) -> str:
    """What a client of Grid Engine prints.

    Raises GridEngineError: there is no such client here, the qmaster does not answer, or it refuses.
    """
    done = _run(words)
    if done.returncode:
        raise GridEngineError(f"{words[0]} refused: {_plain(done)}")
    return done.stdout


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return run_client(
        words,
        CLIENT_SECONDS,
        GridEngineError,
        missing=f"there is no Grid Engine here: no `{words[0]}` on PATH. On a cluster, run the notebook on a "
        "login node; here, run the cell with %%torchrun",
        silent=f"Grid Engine's qmaster did not answer `{words[0]}` within {CLIENT_SECONDS:g} s. `qstat` says "
        "whether it is up; a job that was submitted goes on without us (`workshop jobs`)",
    )


def _plain(done: subprocess.CompletedProcess[str]) -> str:
    """What it said, in one line, without the words that stand in every refusal."""
    lines = [line.strip() for line in f"{done.stderr}\n{done.stdout}".splitlines()]
    reasons = [re.sub(r"^Unable to run job: ", "", line) for line in lines if line and line != "Exiting."]
    return "; ".join(reasons) or f"exit code {done.returncode}"


def submit(script: str | Path, flags: Sequence[str] = ()) -> str:
    """Hand a batch script in; the job's number. Raises GridEngineError with what qsub said against it."""
    answer = call("qsub", "-terse", *flags, str(script))
    numbers = re.findall(r"^(\d+)(?:\.\d+-\d+:\d+)?$", answer, re.MULTILINE)  # an array: 12.1-4:1
    if not numbers:
        raise GridEngineError(f"qsub told no job's number: {answer.strip()!r}")
    return str(numbers[-1])


def check_script(text: str, flags: Sequence[str] = ()) -> str:
    """``qsub -w v``: whether a job with this batch script could ever start here. None is made.

    Raises GridEngineError where it never could.
    """
    with tempfile.TemporaryDirectory(prefix="workshop-") as folder:
        path = Path(folder) / SCRIPT
        path.write_text(text, encoding="utf-8")
        done = _run(("qsub", "-w", "v", *flags, str(path)))
    if done.returncode:
        raise GridEngineError(f"qsub would refuse it: {_plain(done)}")
    return _plain(done)


def queue() -> dict[str, list[State]]:
    """Every job of this user in ``qstat``: one state, or one for each element of an array that is in it.

    A parallel job has a row for each of its nodes. Raises GridEngineError where it cannot be asked.
    """
    xml = call("qstat", "-u", pwd.getpwuid(os.getuid()).pw_name, "-xml", "-g", "dt")
    listed: dict[str, dict[int | None, State]] = {}
    for row in _tree(xml).iter("job_list"):
        job = row.findtext("JB_job_number", "").strip()
        task = row.findtext("tasks", "").strip()
        number = int(task) - 1 if task.isdigit() else None
        host = row.findtext("queue_name", "").partition("@")[2].partition(".")[0]
        elements = listed.setdefault(job, {})
        known = elements.setdefault(number, State(job, number, _word(row.findtext("state", ""))))
        if host and host not in known.nodes.split(", "):
            elements[number] = replace(known, nodes=", ".join(filter(None, (known.nodes, host))))
    return {job: list(elements.values()) for job, elements in listed.items()}


def ended(jobs: Mapping[str, Collection[int]]) -> dict[str, list[State]]:
    """From ``qacct``, for each job with elements that left no record of their own: reading it takes long."""
    return {job: _from_accounts(job, set(gone)) for job, gone in jobs.items() if gone}


def _tree(xml: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise GridEngineError(f"qstat -xml answered with what is no XML ({error}): {xml[:200]!r}") from None


def _word(letters: str) -> str:
    """The letters of ``qstat`` (``qw``, ``Rr``, ``Eqw`` ...) as a word."""
    meanings = (
        ("E", "ERROR"),
        ("d", "COMPLETING"),
        ("sSTP", "SUSPENDED"),
        ("rt", "RUNNING"),
        ("h", "HELD"),
    )
    return next((word for some, word in meanings if set(some) & set(letters)), "PENDING")


def explained(job: str, listed: list[State]) -> list[State]:
    """With the reason why each waits, as ``qstat -j`` tells it (a centre may have switched that off)."""
    listing = call("qstat", "-j", job)
    errors = {
        int(task) - 1: text
        for task, text in re.findall(r"^error reason +(\d+): +(.*)$", listing, re.MULTILINE)
    }
    for at, state in enumerate(listed):
        if state.word == "ERROR":
            text = re.sub(r"^.*\[\d+:\d+\]: (error: )?", "", errors.get(state.task or 0, "")).strip()
            listed[at] = replace(
                state, reason=text, why="it stays so until it is ended; mend the cause first"
            )
        elif state.word == "HELD":
            listed[at] = replace(state, why="it is held: qrls, or ask who runs the machine")
        elif state.word == "PENDING":
            listed[at] = replace(state, reason=_scheduling(listing))
    return listed


def _scheduling(listing: str) -> str:
    """What the scheduler has against starting it now: of its messages the one that is about this job."""
    section = listing.partition("scheduling info:")[2].partition("=====")[0]
    lines = [line.strip() for line in section.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("(Collecting", "There are no messages"))]
    return min(lines, key=lambda line: not line.startswith(("cannot run in PE", "Job ", "(")), default="")


def _from_accounts(job: str, gone: Collection[int]) -> list[State]:
    """From ``qacct``: those of these elements that were killed, or failed without a record of their own.

    [] where it does not know them (yet). A job of several nodes has an account for each, and one that was
    queued again for each start. What an account calls well is not believed: such an element has a record.
    """
    try:
        accounts = call("qacct", "-j", job)
    except GridEngineError:  # not known yet, not installed here, or the accounts are not for users to read
        return []
    states: dict[int, State] = {}
    for account in _accounts(accounts):
        number = int(account["taskid"]) - 1 if account.get("taskid", "").isdigit() else 0
        failed, code = _first(account, "failed"), _first(account, "exit_status")
        seconds = float(re.match(r"[\d.]*", account.get("ru_wallclock", ""))[0] or 0)  # type: ignore[index]
        if number not in gone or failed == RESCHEDULED or failed == code == 0:
            continue
        word = "TIMEOUT" if failed == TIME_WAS_UP else "KILLED" if failed else "FAILED"
        known = states.get(number)
        if known is None or (known.seconds or 0) <= seconds:
            task = number if account.get("taskid", "").isdigit() else None
            states[number] = State(job, task, word, exit_code=str(code), seconds=seconds)
    return list(states.values())


def _accounts(text: str) -> Iterator[dict[str, str]]:
    for block in re.split(r"^=+$", text, flags=re.MULTILINE):
        pairs = (line.split(None, 1) for line in block.splitlines() if len(line.split(None, 1)) == 2)
        account = {name: value.strip() for name, value in pairs}
        if account:
            yield account


def _first(account: dict[str, str], name: str) -> int:
    """The number with which a value begins: ``100 : assumedly after job``."""
    number = account.get(name, "0").split()[0]
    return int(number) if number.isdigit() else 0


def cancel(job: str) -> None:
    """End a job; nothing happens to one that has ended. Raises GridEngineError where it cannot be asked."""
    try:
        call("qdel", job)
    except GridEngineError as error:
        if "does not exist" not in str(error) and "already in deletion" not in str(error):
            raise


def requeue(job: str) -> None:
    """Back into the queue, as the loss of a node does. Raises GridEngineError where the job may not be."""
    call("qmod", "-rj", job)
