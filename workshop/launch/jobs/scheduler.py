"""What jobs need of a scheduler: the one seam between `%%sbatch` and Slurm or Grid Engine.

A `Scheduler` hands a script in, says where a job stands, ends it and queues it again. Two modules are one
each: `slurm` (sbatch, squeue, sacct, scancel) and `grid_engine` (qsub, qstat, qacct, qdel). Which of them is
meant the site says (``scheduler = "slurm"`` or ``"sge"``); a job remembers its own in its record.

Slurm's words for a job's state serve both: PENDING, RUNNING, COMPLETED, FAILED, TIMEOUT ...
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from workshop.facts.checks import check_choice
from workshop.launch.jobs import grid_engine, slurm
from workshop.launch.jobs.client import State
from workshop.site.job import Job
from workshop.site.spec import SiteSpec


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
    known: dict[str, Scheduler] = {"slurm": slurm, "sge": grid_engine}
    check_choice("scheduler", name, tuple(known))
    return known[name]
