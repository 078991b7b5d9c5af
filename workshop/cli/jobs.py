"""``workshop jobs``: the jobs that were handed in from here, and one of them again.

workshop jobs                 every job whose directory is still there, with its state
workshop jobs 12              follow it: state, output of its ranks, and how it ended
workshop jobs 12 --cancel     end it
workshop jobs 12 --remove     forget it: remove its directory (only when it is over)
"""

from __future__ import annotations

import argparse
import shutil
import sys

from workshop.cli.sbatch import followed
from workshop.launch import EngineError, jobs
from workshop.launch.jobs.options import chosen_site


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop jobs``."""
    parser.description = (
        "List jobs with their state, or follow one again to its end. Exit code 0: well; 1: it failed; 2: a "
        "wrong call."
    )
    parser.add_argument("job", nargs="?", metavar="JOB", help="a job's number: follow it")
    parser.add_argument("--cancel", action="store_true", help="end it")
    parser.add_argument("--remove", action="store_true", help="remove the directory of a job that is over")
    parser.add_argument("--site", metavar="FILE", help="the site's file (default: the one in force)")


def run(options: argparse.Namespace) -> int:
    """The command. Exit code 0: well; 1: the job failed, or nobody could be asked; 2: a wrong call."""
    site = chosen_site(options.site)
    if options.job is None:
        if options.cancel or options.remove:
            raise ValueError("which job? workshop jobs NUMBER --cancel")
        return listed(jobs.known(site))
    job = jobs.find(options.job, site)
    try:
        if options.cancel:
            print(job.cancel())
            return 0
        if options.remove:
            return removed(job)
    except EngineError as error:
        print(f"workshop jobs: {error}", file=sys.stderr)
        return 1
    return followed(job)


def listed(submitted: list[jobs.Submitted]) -> int:
    """One line a job, the latest last."""
    if not submitted:
        print("no jobs; `workshop sbatch FILE` or a %%sbatch cell hands one in")
    code = 0
    try:
        states = jobs.states_of(submitted)
        sentences = {job.number: job.sentence(states[job.number]) for job in submitted}
    except EngineError as error:
        sentences, code = dict.fromkeys((job.number for job in submitted), str(error).partition(". ")[0]), 1
    for job in submitted:
        print(f"{job.number:>8}  {job.record.submitted}  {job.record.name:<16}  {sentences[job.number]}")
    return code


def removed(job: jobs.Submitted) -> int:
    """Remove the directory of a job that is over. Raises ValueError while it is not."""
    states = job.states()
    if not all(state.over for state in states.values()):
        raise ValueError(f"job {job.number} is not over ({job.sentence(states)}): --cancel ends it")
    shutil.rmtree(job.directory)
    print(f"{job.directory} is removed")
    return 0
