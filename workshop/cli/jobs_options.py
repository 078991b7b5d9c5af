"""The parsers of ``workshop sbatch`` and ``workshop jobs``."""

from __future__ import annotations

import argparse
from pathlib import Path

from workshop.site.job_flags import add_job_flags


def add_jobs(commands: argparse._SubParsersAction) -> None:
    """Add both commands."""
    sbatch = commands.add_parser(
        "sbatch",
        help="hand a cell, a script or a run in to Slurm or Grid Engine, and follow it",
        description="Turn FILE (a cell as text, a script, or a RUN.toml) into a job of the site's scheduler, "
        "follow it, print what its ranks print; Ctrl-C cancels it. Exit code 0: it ran well; 1: it failed; "
        "2: a wrong call.",
    )
    sbatch.add_argument("source", type=Path, metavar="FILE", help="cell.txt, script.py or RUN.toml")
    add_job_flags(sbatch.add_argument)
    sbatch.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the training of a RUN.toml: num_steps=100; may be repeated",
    )
    sbatch.add_argument("arguments", nargs="*", metavar="-- ARGUMENTS", help="for the script, after --")
    jobs = commands.add_parser(
        "jobs",
        help="list the jobs that were handed in, follow or end one",
        description="List jobs with their state, or follow one again to its end. Exit code 0: well; 1: it "
        "failed; 2: a wrong call.",
    )
    jobs.add_argument("job", nargs="?", metavar="JOB", help="a job's number: follow it")
    jobs.add_argument("--cancel", action="store_true", help="end it")
    jobs.add_argument("--remove", action="store_true", help="remove the directory of a job that is over")
    jobs.add_argument("--site", metavar="FILE", help="the site's file (default: the one in force)")
