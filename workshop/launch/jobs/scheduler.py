"""What jobs need of a scheduler: the one seam between `%%sbatch` and Slurm or Grid Engine.

A `Scheduler` hands a script in, says where a job stands, ends it and queues it again. Two modules are one
each: `slurm` (sbatch, squeue, sacct, scancel) and `grid_engine` (qsub, qstat, qacct, qdel). Which of them is
meant the site says (``scheduler = "slurm"`` or ``"sge"``); a job remembers its own in its record.

Slurm's words for a job's state serve both: PENDING, RUNNING, COMPLETED, FAILED, TIMEOUT ...
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from workshop.facts.checks import check_choice
from workshop.facts.secret_variables import secrets_in
from workshop.launch.environment import scrubbed
from workshop.launch.session import EngineError
from workshop.site.job import Job
from workshop.site.spec import SiteSpec

_WHICH = (
    *("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS"),
    *("SGE_ROOT", "SGE_CELL", "SGE_CLUSTER_NAME", "SGE_QMASTER_PORT", "SGE_EXECD_PORT"),
)
KEPT = "WORKSHOP_JOB_KEEPS"  # names, for the process that hands a job in for a notebook
_kept: ContextVar[tuple[str, ...]] = ContextVar("kept", default=())
WAITING = frozenset(
    ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "HELD", "ERROR")
)
AT_WORK = frozenset(("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING"))


class SchedulerError(EngineError):
    """A scheduler could not be asked, or refused; the message says what to do."""


@dataclass(frozen=True)
class State:
    """One job, or one element of an array: the word for its state, why it waits, where it runs.

    why: ``reason`` in words, where there are better ones. seconds: how long it ran, once that is known.
    """

    job: str
    task: int | None
    word: str
    reason: str = ""
    start: str = ""
    nodes: str = ""
    exit_code: str = ""
    why: str = ""
    seconds: float | None = None

    @property
    def waits(self) -> bool:
        """Not started yet, or to be started again."""
        return self.word in WAITING

    @property
    def over(self) -> bool:
        """It has ended, well or badly, and will not go on."""
        return self.word not in WAITING and self.word not in AT_WORK

    @property
    def sentence(self) -> str:
        """State and reason in words."""
        if not self.waits:
            return f"{self.word} on {self.nodes}" if self.nodes and not self.over else self.word
        reason = ": ".join(filter(None, (self.reason, self.why)))
        said = f"{self.word} ({reason})" if reason else self.word
        return f"{said}, expected to start at {self.start}" if self.start not in ("", "N/A") else said


class Scheduler(Protocol):
    """What a scheduler's module offers. Each function raises SchedulerError where it cannot be asked."""

    SUBMIT: str
    SCRIPT: str

    def script(self, site: SiteSpec, job: Job, /) -> str:
        """The text of the batch script. Raises ValueError for what this scheduler cannot do."""

    def submit_flags(self, site: SiteSpec, /) -> list[str]:
        """What stands on the command line, because the script cannot say it."""

    def submit(self, script: str | Path, flags: Sequence[str] = ()) -> str:
        """Hand a batch script in; the job's number."""

    def check_script(self, text: str, flags: Sequence[str] = ()) -> str:
        """What it says of a job with this script; none is made. Raises where that never could start."""

    def queue(self) -> dict[str, list[State]]:
        """Every job of this user that it still knows, by number: one question for all of them."""

    def explained(self, job: str, listed: list[State], /) -> list[State]:
        """The states of a job that waits, with the reasons, where `queue` does not tell them."""

    def ended(self, jobs: Mapping[str, Collection[int]], /) -> dict[str, list[State]]:
        """What the accounts tell of jobs, or elements of them, that `queue` does not know any more.

        jobs: by number, the elements whose own record does not tell how they ended.
        """

    def cancel(self, job: str) -> None:
        """End a job; nothing happens to one that has ended."""

    def requeue(self, job: str) -> None:
        """Back into the queue, as a preemption does."""


def scheduler_of(name: str) -> Scheduler:
    """The scheduler with the name that a site gives it. Raises ValueError for another."""
    from workshop.launch.jobs import grid_engine, slurm

    known: dict[str, Scheduler] = {"slurm": slurm, "sge": grid_engine}
    check_choice("scheduler", name, tuple(known))
    return known[name]


def run_client(
    words: Sequence[str], limit: float, kind: type[SchedulerError], *, missing: str, silent: str
) -> subprocess.CompletedProcess[str]:
    """Run a scheduler's client to its end, however that is.

    limit: seconds. missing, silent: what is told where it is not installed, or does not answer in time.

    Raises ``kind`` with one of the two.
    """
    program = shutil.which(words[0])
    if program is None:
        raise kind(missing)
    try:
        return subprocess.run(
            [program, *words[1:]],
            capture_output=True,
            text=True,
            timeout=limit,
            stdin=subprocess.DEVNULL,
            env=client_environment(os.environ),
            start_new_session=True,  # the stop button is for the notebook; it cancels the job in order
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise kind(silent) from None


@contextlib.contextmanager
def keeping(names: Iterable[str]) -> Iterator[None]:
    """Let these secrets through to jobs that are handed in meanwhile (``keep`` of the site's file)."""
    token = _kept.set(tuple(names))
    try:
        yield
    finally:
        _kept.reset(token)


def left_out(environment: Mapping[str, str], keep: Iterable[str]) -> tuple[str, ...]:
    """Names of the secrets that a job does not get to see."""
    return tuple(secrets_in(scrubbed(environment), tuple(keep)))


def client_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a client, which a job inherits and a scheduler keeps.

    No rank of an outer job and no secrets (but those of `keeping`) are among them; those that say which
    scheduler is meant are.
    """
    gone = left_out(environment, _kept.get())
    seen = {name: value for name, value in scrubbed(environment).items() if name not in gone}
    return {**seen, **which_scheduler(environment)}


def which_scheduler(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that say which scheduler is meant, and nothing of a job."""
    return {name: value for name, value in environment.items() if name in _WHICH}
