"""Hands a job in, and ends it when the notebook that wanted it is gone.

    python -m workshop.launch.child.job_keeper SCRIPT

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

from workshop.launch.jobs import slurm

TRIES = 5


def main() -> int:
    """See above; the exit code is 0 unless the job could not be submitted or cancelled."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        job = slurm.submit(sys.argv[1])
    except slurm.SlurmError as error:
        _say(error=str(error))
        return 1
    _say(job=job)
    if _released(os.getppid()):
        return 0
    for attempt in range(TRIES):
        try:
            slurm.cancel(job)
            return 0
        except slurm.SlurmError:
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
    except BrokenPipeError:  # the notebook went while sbatch ran; the next line read is the end of the file
        sys.stdout = None


if __name__ == "__main__":
    sys.exit(main())
