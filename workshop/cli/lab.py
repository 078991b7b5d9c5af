"""``workshop lab``: JupyterLab with working copies of the lessons, `lab_here` or in a job (`lab_job`)."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop lab``."""
    parser.description = (
        "Lay working copies of the lessons (outputs cleared) into a folder of your own and serve "
        "JupyterLab there, on this machine only and with its token. What you wrote is never overwritten."
    )
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="the folder (default: lab/ beside notebooks/)"
    )
    parser.add_argument(
        "--port", type=_port, default=8888, metavar="P", help="first port to try (default: 8888)"
    )
    parser.add_argument(
        "--welcome-only", action="store_true", help="run 00_welcome here in the terminal and end"
    )
    parser.add_argument(
        "--copies-only",
        action="store_true",
        help="lay the working copies and end: Jupyter runs already",
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address, open no browser")
    _add_job(parser)


def _add_job(parser: argparse.ArgumentParser) -> None:
    job = parser.add_argument_group("in a job of the site's scheduler")
    job.add_argument(
        "--in-job", action="store_true", help="start JupyterLab on a node; print the tunnel to it"
    )
    job.add_argument("--dry-run", action="store_true", help="print the batch script, submit nothing")
    job.add_argument("--time", default="", metavar="HH:MM:SS", help="time limit (default: the site's)")
    job.add_argument("--gpus", type=int, metavar="G", help="GPUs (default: all of a node)")
    job.add_argument("--cpus", type=int, metavar="C", help="cores (default: the share of its GPUs)")
    job.add_argument("--memory", default="", metavar="32G", help="memory (default: the scheduler's)")
    job.add_argument("--wait", type=float, default=600.0, metavar="S", help="seconds to wait for it (600)")
    job.add_argument("--tunnel", metavar="USER@HOST", help="how you log in (default: you, at this host)")
    job.add_argument(
        "--network",
        action="store_true",
        help="listen on the node's network: for sites whose nodes take no ssh",
    )


def _port(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 1 to 65535")
    return number


def run(options: argparse.Namespace) -> int:
    """The command."""
    # Imported when they run: what reads notebooks takes seconds to load, and `--help` needs none of it.
    if options.in_job:
        from workshop.cli import lab_job

        return lab_job.run(options, (options.dir or Path("lab")).resolve())
    from workshop.cli import lab_here

    return lab_here.run(options)
