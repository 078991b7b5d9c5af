"""Jobs: hand a program in to the site's scheduler, follow it as if it ran here, and find it again.

    >>> from workshop.launch import jobs
    >>> job = jobs.submit(program, Job("hello", "", nnodes=2, nproc_per_node=2))       # doctest: +SKIP
    >>> result = job.follow()                                                          # doctest: +SKIP
    >>> result[3].loss                                                                 # doctest: +SKIP

While it waits, `follow` says why; while it runs, what the ranks print; at its end it returns what `torchrun`
returns, or raises what `torchrun` raises. A job ends with its notebook (`child/job_watchdog.py`) unless it
was detached; then `known()` lists it and `find(number)` gives it back, in this kernel or in another.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workshop.launch.jobs import directory as job_directory
from workshop.launch.jobs.client import (
    KEPT,
    SchedulerError,
    State,
    keeping,
    left_out,
    which_scheduler,
)
from workshop.launch.jobs.record import read_record, write_record
from workshop.launch.jobs.scheduler import scheduler_of
from workshop.launch.jobs.submitted import Submitted
from workshop.launch.jobs.watch import watch_of
from workshop.launch.messages import Submission, from_json
from workshop.launch.request import Cell, Script, takes_passing
from workshop.site.current import current_site, engine_environment
from workshop.site.job import Job
from workshop.site.owners import own_folder
from workshop.site.spec import SiteSpec


@dataclass(frozen=True)
class Sweep:
    """One variable of the program, and the value it has in each element of the array."""

    name: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"--sweep {self.name}=...: {self.name!r} is no name of a variable")
        if not self.values:
            raise ValueError(f"--sweep {self.name}=: which values? For example lr=1e-3,3e-3")


@takes_passing
def submit(
    program: str | Cell | Script,
    job: Job,
    site: SiteSpec | None = None,
    *,
    variables: Mapping[str, Any] | None = None,
    sweep: Sweep | None = None,
    detach: bool = False,
) -> Submitted:
    """Hand ``program`` in; ``job`` says its name, size and time (its own program and args are not used).

    site: default: the one in force.
    variables: values of the notebook, by the names that they have in the program on every rank.

    Raises ValueError for what cannot be run, SchedulerError where it is not there, is silent, or refuses.
    """
    site = site or current_site()
    check_scheduler(site)
    sweep_values = (sweep.name, sweep.values) if sweep else None
    directory, record = job_directory.prepare(program, site, with_array(job, sweep), variables, sweep_values)
    scheduler = scheduler_of(site.scheduler)
    script, flags = directory / scheduler.SCRIPT, scheduler.submit_flags(site)
    watchdog = None
    if detach:
        with keeping(site.keep):
            number = scheduler.submit(script, flags)
    else:
        watchdog, number = _keep(site, script, flags)
    record = replace(record, job=number, detached=detach)
    write_record(directory, record)
    submitted = Submitted(directory, record, watchdog)
    submitted.left_out = left_out(os.environ, site.keep)
    return submitted


def with_array(job: Job, sweep: Sweep | None) -> Job:
    """The job as an array with an element for each value. Raises ValueError where it is one already."""
    if sweep is None:
        return job
    if job.array:
        raise ValueError("--sweep is an array already: leave --array out")
    return replace(job, array=f"0-{len(sweep.values) - 1}")


def try_out(job: Job, site: SiteSpec, sweep: Sweep | None = None) -> str:
    """The batch script that `submit` would hand in, with NEW for the directory that it would make."""
    return job_directory.batch_script(site, with_array(job, sweep), Path(site.jobs, "NEW"))


def check_scheduler(site: SiteSpec) -> None:
    """ValueError where the site has no scheduler."""
    if site.scheduler == "none":
        where = site.source or "no site file was found"
        raise ValueError(
            f"the site {site.name!r} has no scheduler ({where}), and jobs go to one: choose a site with "
            "--site FILE or WORKSHOP_SITE, or run the cell with %%torchrun"
        )


def check(job: Job, site: SiteSpec, sweep: Sweep | None = None) -> str:
    """What the site's scheduler says of such a job: when it would start, or that it would. None is made.

    Raises ValueError at a site without one, SchedulerError where the job never could start.
    """
    check_scheduler(site)
    scheduler = scheduler_of(site.scheduler)
    return scheduler.check_script(try_out(job, site, sweep), scheduler.submit_flags(site))


def _keep(site: SiteSpec, script: Path, flags: list[str]) -> tuple[subprocess.Popen[str], str]:
    """Submit through the watchdog, which ends the job when this process is gone."""
    watchdog = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "workshop.launch.child.job_watchdog",
            site.scheduler,
            str(script),
            *flags,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**engine_environment(), **which_scheduler(os.environ), KEPT: ",".join(site.keep)},
        start_new_session=True,
    )
    assert watchdog.stdout is not None
    line = watchdog.stdout.readline()  # it answers within the time limit of a client
    silent = Submission(error="the process that submits jobs ended without a word")
    answer: Submission = from_json(Submission, line) if line else silent
    if not answer.job:
        watchdog.wait()
        raise SchedulerError(answer.error)
    return watchdog, answer.job


def known(site: SiteSpec | None = None) -> list[Submitted]:
    """Every job that was submitted from here and whose directory is still there, the oldest first."""
    root = Path((site or current_site()).jobs)
    jobs = []
    for directory in filter(own_folder, sorted(root.glob("*"))):  # others may lay theirs into a shared folder
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # another folder, or being made
            record = read_record(directory)
            if record.job:
                jobs.append(Submitted(directory, record))
    return jobs


def find(number: str | int, site: SiteSpec | None = None) -> Submitted:
    """The job with this number. Raises ValueError where there is none, with those there are."""
    jobs = known(site)
    for job in reversed(jobs):  # a cluster that was set up anew counts from 1 again
        if job.number == str(number):
            return job
    there = ", ".join(job.number for job in jobs[-10:]) or "none"
    raise ValueError(f"no job {number} in {(site or current_site()).jobs} (there: {there})")


def states_of(submitted: Sequence[Submitted]) -> dict[str, dict[int, State]]:
    """The states of many jobs by number, with one question to each scheduler. Raises SchedulerError."""
    by_scheduler: dict[str, dict[str, Collection[int]]] = {}
    for job in submitted:
        by_scheduler.setdefault(job.record.scheduler, {})[job.number] = job.open_elements()
    for name, numbers in by_scheduler.items():
        watch_of(name).states(numbers)
    return {job.number: job.states(max_age=60.0) for job in submitted}
