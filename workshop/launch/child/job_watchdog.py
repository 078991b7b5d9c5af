"""Hands a job in, and ends it when the notebook that wanted it is gone.

    python -m workshop.launch.child.job_watchdog SCHEDULER SCRIPT [FLAGS]

A job does not end with the notebook that submitted it: it belongs to the scheduler. For a job that was not
detached this small process stands in. It submits the script itself, so that there is no moment in which a job
exists that nobody would end; it says the job's number on standard output; and it waits at standard input,
which only the notebook holds. ``done`` means that the job has ended or was let go. The end of the file
without it means that the notebook is gone (a SIGKILL included): the job is cancelled.

It looks until the scheduler has forgotten the job, and asks again where a node did not hear (`jobs.ending`).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from workshop.launch.jobs.client import KEPT, SchedulerError, keeping
from workshop.launch.jobs.ending import Patience, end_job
from workshop.launch.jobs.record import CANCELLED
from workshop.launch.jobs.scheduler import Scheduler, scheduler_of
from workshop.launch.messages import Submission, to_json

PATIENCE = Patience(limit=900.0, first=0.5, last=15.0, bears_silence=True)


def main() -> int:
    """See above; the exit code is 0 unless the job could not be submitted or cancelled."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    scheduler, script = scheduler_of(sys.argv[1]), Path(sys.argv[2])
    try:
        with keeping(filter(None, os.environ.get(KEPT, "").split(","))):
            job = scheduler.submit(script, sys.argv[3:])
    except SchedulerError as error:
        _say(Submission(error=str(error)))
        return 1
    _say(Submission(job))
    if _released(os.getppid()):
        return 0
    (script.parent / CANCELLED).touch()
    return 0 if ended(scheduler, job) else 1


def ended(scheduler: Scheduler, job: str, clock: Any = time) -> bool:
    """Cancel the job and wait until it is gone; False where it is still there after a quarter of an hour."""

    def is_gone() -> bool:
        return all(state.over for state in scheduler.queue().get(job, []))

    return end_job(scheduler, job, is_gone, PATIENCE, clock).gone


def _released(notebook: int) -> bool:
    """Wait: True once the notebook says ``done``, False when it is gone."""
    while not select.select([sys.stdin], [], [], 2.0)[0]:
        if os.getppid() != notebook:  # a process that it forked may hold the pipe still
            return False
    return sys.stdin.readline().strip() == "done"


def _say(answer: Submission) -> None:
    try:
        print(to_json(answer), flush=True)
    except (
        BrokenPipeError
    ):  # the notebook went while the client ran; the next line read is the end of the file
        sys.stdout = None


if __name__ == "__main__":
    sys.exit(main())
