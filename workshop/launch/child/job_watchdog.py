"""Hands a job in, and ends it when the notebook that wanted it is gone.

    python -m workshop.launch.child.job_watchdog SCHEDULER SCRIPT [FLAGS]

A job does not end with the notebook that submitted it: it belongs to the scheduler. For a job that was not
detached this small process stands in. It submits the script itself, so that there is no moment in which a job
exists that nobody would end; it says the job's number on standard output; and it waits at standard input,
which only the notebook holds. ``done`` means that the job has ended or was let go. The end of the file
without it means that the notebook is gone (a SIGKILL included): the job is cancelled.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path

from workshop.launch.jobs.client import KEPT, SchedulerError, keeping
from workshop.launch.jobs.record import CANCELLED
from workshop.launch.jobs.scheduler import scheduler_of

TRIES = 5


def main() -> int:
    """See above; the exit code is 0 unless the job could not be submitted or cancelled."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    scheduler, script = scheduler_of(sys.argv[1]), Path(sys.argv[2])
    try:
        with keeping(filter(None, os.environ.get(KEPT, "").split(","))):
            job = scheduler.submit(script, sys.argv[3:])
    except SchedulerError as error:
        _say(error=str(error))
        return 1
    _say(job=job)
    if _released(os.getppid()):
        return 0
    (script.parent / CANCELLED).touch()
    for attempt in range(TRIES):
        try:
            scheduler.cancel(job)
            return 0
        except SchedulerError:
            time.sleep(2**attempt)
    return 1


def _released(notebook: int) -> bool:
    """Wait: True once the notebook says ``done``, False when it is gone."""
    while not select.select([sys.stdin], [], [], 2.0)[0]:
        if os.getppid() != notebook:  # a process that it forked may hold the pipe still
            return False
    return sys.stdin.readline().strip() == "done"


def _say(**message: str) -> None:
    try:
        print(json.dumps(message), flush=True)
    except (
        BrokenPipeError
    ):  # the notebook went while the client ran; the next line read is the end of the file
        sys.stdout = None


if __name__ == "__main__":
    sys.exit(main())
