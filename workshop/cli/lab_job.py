"""``workshop lab --in-job``: JupyterLab in a job of the site's scheduler, and the tunnel that leads to it."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from workshop.doctor.clients import ask
from workshop.launch.jobs.client import client_environment, keeping
from workshop.site.current import current_site, python_of, site_environment
from workshop.site.lab_script import NAME, Lab, lab_script, log_path
from workshop.site.sge_script import submit_flags
from workshop.site.spec import SiteSpec, check_time

SUBMIT_SECONDS = 30.0
POLL_SECONDS = 2.0
_GONE = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")


def run(options: argparse.Namespace, folder: Path) -> int:
    """Print the script, or submit it and wait until JupyterLab is up.

    Raises ValueError where there is no scheduler, or it takes no job.
    """
    site = current_site()
    environment = site_environment(site, one_node=False)
    if site.runtime == "none" and Path(site.source).is_file():  # a container may not see the file
        environment["WORKSHOP_SITE"] = str(Path(site.source).absolute())
    script = lab_script(site, lab_of(site, options, folder), environment)
    if options.dry_run:
        print(script, end="")
        return 0
    job = submit(site, script)
    print(f"lab: job {job}, log {log_path(site, job)}", flush=True)
    if site.scheduler == "sge":
        print(f"lab: the tunnel and the address will be in the log; qdel {job} ends it")
        return 0
    try:
        return follow(site, job, options.wait)
    except KeyboardInterrupt:
        cancelled = ask(["scancel", job])
        print(f"\nlab: job {job} {'is cancelled' if cancelled.came else 'stays: ' + cancelled.why}")
        return 130


def lab_of(site: SiteSpec, options: argparse.Namespace, folder: Path) -> Lab:
    """What the options ask for. Raises ValueError for a time that is none."""
    login = options.tunnel or f"{getpass.getuser()}@{socket.getfqdn()}"
    if options.time:
        check_time(options.time)
    return Lab(
        str(folder), login, python_of(site), options.port, options.network, options.time or "",
        options.gpus, options.cpus, options.memory,
    )  # fmt: skip


def submit(site: SiteSpec, script: str) -> str:
    """Hand the script to the scheduler and return the job's number. Raises ValueError where it is refused."""
    jobs = Path(site.jobs)
    with private():
        jobs.mkdir(parents=True, exist_ok=True)
        path = jobs / f"{NAME}.sh"
        path.write_text(script)
        command = (
            ["sbatch", "--parsable"] if site.scheduler == "slurm" else ["qsub", "-terse", *submit_flags(site)]
        )
        with keeping(site.keep):
            answer = ask([*command, str(path)], SUBMIT_SECONDS, client_environment(os.environ))
    if not answer.came:
        raise ValueError(
            f"the scheduler did not take the job: {answer.why}. `workshop site check` may say why"
        )
    return re.split(r"[;.\s]", answer.text.strip())[0]


@contextlib.contextmanager
def private() -> Iterator[None]:
    """What is written meanwhile is for this user alone; the scheduler gives the same to the job's log."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def follow(site: SiteSpec, job: str, seconds: float) -> int:
    """Say what the job does until its log has the tunnel: 0; 1 when it ended before, or the time is up."""
    log, end, shown = Path(log_path(site, job)), time.monotonic() + seconds, ""
    while time.monotonic() < end:
        text = log.read_text(errors="replace") if log.exists() else ""
        if "ssh -N" in text and "?token=" in text:
            print(text, end="")
            print(f"lab: the job goes on without this terminal; scancel {job} ends it", flush=True)
            return 0
        state = state_of(job)
        if state != shown:
            print(f"lab: {state}", flush=True)
            shown = state
        if state.split(" ")[0] in _GONE:
            print(text, end="")
            print("lab: the job ended before JupyterLab was up; its log is above")
            return 1
        time.sleep(POLL_SECONDS)
    print(f"lab: not up after {seconds:g} s; the job stays: squeue --jobs {job}, scancel {job}")
    return 1


def state_of(job: str) -> str:
    """PENDING and why, RUNNING and where; COMPLETED when Slurm no longer lists it."""
    answer = ask(["squeue", "--noheader", f"--jobs={job}", "--format=%T %R"])
    if answer.came or "Invalid job id" in answer.why:
        return answer.text.strip() or "COMPLETED"
    return f"UNKNOWN ({answer.why})"
